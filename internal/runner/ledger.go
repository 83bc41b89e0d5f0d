package runner

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
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

	// news has room for one: the gateway is to hear of a change at once.
	news chan struct{}

	mu       sync.Mutex
	reserved amount
	count    int
	// shortage is why nothing is promised for want of disk space, or empty.
	shortage string
}

func newLedger(total amount, maxSandboxes int) *ledger {
	return &ledger{total: total, maxSandboxes: maxSandboxes, news: make(chan struct{}, 1)}
}

// setShortage says whether that is new. The text is not: it has figures in it.
func (l *ledger) setShortage(text string) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = (text == "") != (l.shortage == "")
	l.shortage = text
	if changed {
		select {
		case l.news <- struct{}{}:
		default:
		}
	}
	return changed
}

// reserve promises an amount, or answers RunnerCapacityExhausted or StorageFull
// and promises nothing.
func (l *ledger) reserve(want amount) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shortage != "" {
		return apierr.New(apierr.StorageFull, "the runner begins no sandbox: %s; delete sandboxes, prune images, or free space on that disk", l.shortage)
	}
	if l.count >= l.maxSandboxes {
		return apierr.New(apierr.RunnerCapacityExhausted,
			"the runner has %d sandboxes, which is its limit; delete some, or try again later", l.count)
	}
	var short []string
	for _, r := range []struct {
		name               string
		text               func(int64) string
		want, taken, total int64
	}{
		{"CPU", policy.CPUText, want.CPUMillis, l.reserved.CPUMillis, l.total.CPUMillis},
		{"memory", policy.MemoryText, want.MemoryBytes, l.reserved.MemoryBytes, l.total.MemoryBytes},
		{"GPU", func(n int64) string { return strconv.FormatInt(n, 10) }, want.GPUCount, l.reserved.GPUCount, l.total.GPUCount},
	} {
		// What is not asked for cannot be short.
		if r.want > 0 && r.want > r.total-r.taken {
			short = append(short, fmt.Sprintf("%s: the sandbox requests %s of %s, of which %s are taken",
				r.name, r.text(r.want), r.text(r.total), r.text(max(r.taken, 0))))
		}
	}
	if len(short) > 0 {
		return apierr.New(apierr.RunnerCapacityExhausted,
			"the runner has no room for the sandbox (%s); request less, delete sandboxes, or try again later", strings.Join(short, "; "))
	}
	l.add(want)
	return nil
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
		StorageShortage:       l.shortage,
	}
}
