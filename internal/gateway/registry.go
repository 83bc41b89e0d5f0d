package gateway

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/gateway/placement"
)

// registry is what the gateway keeps in memory: the live sandboxes of runners
// that have connected since the process started, and those runners.
type registry struct {
	mu        sync.RWMutex
	sandboxes map[string]*sandbox
	runners   map[RunnerKey]*runner
}

func newRegistry() *registry {
	return &registry{sandboxes: map[string]*sandbox{}, runners: map[RunnerKey]*runner{}}
}

// sandbox answers with nil when it is not in memory.
func (r *registry) sandbox(id string) *sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sandboxes[id]
}

// known answers with nil for a runner that was never heard of.
func (r *registry) known(key RunnerKey) *runner {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.runners[key]
}

// runner makes one when there is none.
func (r *registry) runner(key RunnerKey) *runner {
	if found := r.known(key); found != nil {
		return found
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runners[key] == nil {
		r.runners[key] = &runner{
			key:          key,
			changed:      make(chan struct{}),
			sandboxes:    map[string]*sandbox{},
			reservations: map[string]placement.Amount{},
			departing:    map[string]struct{}{},
		}
	}
	return r.runners[key]
}

// all lists the runners.
func (r *registry) all() []*runner {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.runners))
}

// add answers with the sandbox of that record, which may have been there
// before.
func (r *registry) add(record *Record) *sandbox {
	home := r.runner(runnerKeyOf(record))
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.sandboxes[record.SandboxID]; found != nil {
		return found
	}
	sb := newSandbox(record)
	r.sandboxes[sb.id] = sb
	home.mu.Lock()
	home.sandboxes[sb.id] = sb
	home.mu.Unlock()
	home.hold(sb.id, demandOf(record))
	return sb
}

// remove forgets a sandbox that has ended and frees its room. It is departing
// from then on.
func (r *registry) remove(sb *sandbox) {
	home := r.runner(sb.key)
	home.mu.Lock()
	home.departing[sb.id] = struct{}{}
	delete(home.sandboxes, sb.id)
	home.mu.Unlock()
	r.mu.Lock()
	if r.sandboxes[sb.id] == sb {
		delete(r.sandboxes, sb.id)
	}
	r.mu.Unlock()
	home.release(sb.id)
}

func (r *runner) isDeparting(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.departing[id]
	return ok
}

func (r *runner) departed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.departing, id)
}

// runner is a runner in memory.
type runner struct {
	key RunnerKey

	// attach is held from reading or inserting sandboxes in the store until they
	// are in memory, and shared by changes, so that none falls between: what is
	// in memory is never older than the store.
	attach sync.RWMutex

	// serving is the session that calls go to; nil when there is none.
	serving atomic.Pointer[session]
	policy  atomic.Pointer[compiledPolicy]

	mu       sync.Mutex
	sessions []*session
	// changed closes when serving changes.
	changed         chan struct{}
	sandboxes       map[string]*sandbox
	capacity        placement.Amount
	storageShortage string
	// reservations is what sandboxes have been promised; reserved is their
	// sum.
	reservations map[string]placement.Amount
	reserved     placement.Amount
	// departing are sandboxes that have ended, until the runner forgets them.
	departing map[string]struct{}
}

// session answers with the one that calls go to, nil when there is none.
func (r *runner) session() *session {
	s := r.serving.Load()
	if s == nil || s.conn.Usable() {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.electLocked()
	return r.serving.Load()
}

// nextElection closes when another session, or none, serves.
func (r *runner) nextElection() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// waitSession waits until there is a session that calls can go to.
func (r *runner) waitSession(ctx context.Context) (*session, error) {
	for {
		changed := r.nextElection()
		if s := r.session(); s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// electLocked chooses the newest revision that serves; of equals, the one that
// connected last.
func (r *runner) electLocked() {
	var best *session
	for _, s := range r.sessions {
		if !s.inSync.Load() || !s.conn.Usable() {
			continue
		}
		if best == nil || s.identity.Revision >= best.identity.Revision {
			best = s
		}
	}
	if r.serving.Swap(best) != best {
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

func (r *runner) connect(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = append(r.sessions, s)
}

// disconnect says whether another session of the same process identity is
// left.
func (r *runner) disconnect(s *session) (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = slices.DeleteFunc(r.sessions, func(other *session) bool { return other == s })
	r.electLocked()
	return slices.ContainsFunc(r.sessions, func(other *session) bool { return other.identity == s.identity })
}

// synced lets a session serve.
func (r *runner) synced(s *session) {
	s.inSync.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.electLocked()
}

func (r *runner) connected() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sessions)
}

func (r *runner) live() []*sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.sandboxes))
}

// setCapacity is told what the runner says it has.
func (r *runner) setCapacity(capacity *runnerv1.Capacity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.capacity = placement.Amount{
		CPUMillis:   capacity.GetCpuMillicores(),
		MemoryBytes: capacity.GetMemoryBytes(),
		GPUCount:    capacity.GetGpuCount(),
	}
	r.storageShortage = capacity.GetStorageShortage()
}

// shortage is why the runner begins nothing for want of disk space, or empty.
func (r *runner) shortage() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.storageShortage
}

// room is all there is and what of it has been promised, to how many.
func (r *runner) room() (capacity, reserved placement.Amount, sandboxes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.capacity, r.reserved, len(r.reservations)
}

// reserve promises room; false when there is not enough.
func (r *runner) reserve(id string, amount placement.Amount) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !amount.Within(r.capacity.Sub(r.reserved)) {
		return false
	}
	r.holdLocked(id, amount)
	return true
}

// hold counts what was promised before.
func (r *runner) hold(id string, amount placement.Amount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.reservations[id]; !ok {
		r.holdLocked(id, amount)
	}
}

func (r *runner) holdLocked(id string, amount placement.Amount) {
	r.reservations[id] = amount
	r.reserved = r.reserved.Add(amount)
}

func (r *runner) release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved = r.reserved.Sub(r.reservations[id])
	delete(r.reservations, id)
}
