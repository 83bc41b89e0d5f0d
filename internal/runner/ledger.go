package runner

import (
	"sync"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// amount is what a sandbox is promised, or what there is.
type amount struct {
	CPUMillis   int64 `json:"cpu_millis"`
	MemoryBytes int64 `json:"memory_bytes"`
	GPUCount    int64 `json:"gpu_count,omitempty"`
}

func (a amount) plus(b amount) amount {
	return amount{a.CPUMillis + b.CPUMillis, a.MemoryBytes + b.MemoryBytes, a.GPUCount + b.GPUCount}
}

func (a amount) minus(b amount) amount {
	return amount{a.CPUMillis - b.CPUMillis, a.MemoryBytes - b.MemoryBytes, a.GPUCount - b.GPUCount}
}

// ledger knows what sandboxes have been promised. Safe for concurrent use.
type ledger struct {
	total        amount
	maxSandboxes int

	mu       sync.Mutex
	reserved amount
	count    int
}

func newLedger(total amount, maxSandboxes int) *ledger {
	return &ledger{total: total, maxSandboxes: maxSandboxes}
}

// reserve promises an amount, or answers RunnerCapacityExhausted and promises
// nothing.
func (l *ledger) reserve(want amount) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := l.total.minus(l.reserved)
	switch {
	case l.count >= l.maxSandboxes:
		return apierr.New(apierr.RunnerCapacityExhausted,
			"the runner has %d sandboxes, which is its limit; delete some, or try again later", l.count)
	case want.CPUMillis > free.CPUMillis:
		return l.exhausted("CPU millicores", want.CPUMillis, free.CPUMillis, l.total.CPUMillis)
	case want.MemoryBytes > free.MemoryBytes:
		return l.exhausted("bytes of memory", want.MemoryBytes, free.MemoryBytes, l.total.MemoryBytes)
	case want.GPUCount > free.GPUCount:
		return l.exhausted("GPUs", want.GPUCount, free.GPUCount, l.total.GPUCount)
	}
	l.add(want)
	return nil
}

func (l *ledger) exhausted(what string, want, free, total int64) error {
	return apierr.New(apierr.RunnerCapacityExhausted,
		"the sandbox requests %d %s, of which the runner has %d left out of %d; ask for less, or delete other sandboxes",
		want, what, max(free, 0), total)
}

// adopt counts what was promised before, whatever there is now.
func (l *ledger) adopt(had amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(had)
}

func (l *ledger) add(a amount) {
	l.reserved = l.reserved.plus(a)
	l.count++
}

func (l *ledger) release(had amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved = l.reserved.minus(had)
	l.count--
}

func (l *ledger) capacity() *runnerv1.Capacity {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &runnerv1.Capacity{
		CpuMillicores:         l.total.CPUMillis,
		MemoryBytes:           l.total.MemoryBytes,
		GpuCount:              l.total.GPUCount,
		ReservedCpuMillicores: l.reserved.CPUMillis,
		ReservedMemoryBytes:   l.reserved.MemoryBytes,
		ReservedGpuCount:      l.reserved.GPUCount,
		RunningSandboxes:      int32(l.count),
	}
}
