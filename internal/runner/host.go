package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/engine"
)

// host owns the sandboxes of a state directory. Only the holder of the
// directory's lock has one.
type host struct {
	engine   engine.Engine
	runtime  string
	records  records
	ledger   *ledger
	hub      *hub
	policies *policyCache
	identity func() identity
	limits   Limits
	clock    clock.WithTicker
	logger   *slog.Logger

	// ctx is what owners and the disk watch run under; it ends with the runner.
	ctx    context.Context
	owners sync.WaitGroup

	mu        sync.Mutex
	sandboxes map[string]*sandbox
	// closed: no owner is started any more.
	closed bool
}

// newHost adopts what earlier processes left, and starts an owner for every
// sandbox. It runs until ctx ends and wait returns.
func newHost(ctx context.Context, r *runner) (*host, error) {
	kept, err := openRecords(filepath.Join(r.config.StateDirectory, "sandboxes"))
	if err != nil {
		return nil, err
	}
	h := &host{
		engine:    r.config.Engine,
		runtime:   r.info.Runtime,
		records:   kept,
		ledger:    r.ledger,
		hub:       r.hub,
		policies:  r.policies,
		identity:  r.identity,
		limits:    r.config.Limits,
		clock:     r.config.Clock,
		logger:    r.config.Logger,
		ctx:       ctx,
		sandboxes: map[string]*sandbox{},
	}
	if err := h.adopt(); err != nil {
		return nil, err
	}
	watch := &diskWatch{host: h}
	h.owners.Go(func() { watch.run(ctx) })
	return h, nil
}

// adopt takes over what is on disk and in the engine.
func (h *host) adopt() error {
	found, err := h.engine.List(h.ctx)
	if err != nil {
		return fmt.Errorf("adopt sandboxes: %w", err)
	}
	records, err := h.records.load()
	if err != nil {
		return fmt.Errorf("adopt sandboxes: %w", err)
	}
	states := make(map[string]engine.State, len(found))
	for _, sandbox := range found {
		states[sandbox.ID] = sandbox.State
	}
	for _, record := range records {
		state := states[record.SandboxID]
		delete(states, record.SandboxID)
		s, err := h.newSandbox(record)
		if err != nil {
			return fmt.Errorf("adopt sandbox %s: %w", record.SandboxID, err)
		}
		h.sandboxes[record.SandboxID] = s
		h.ledger.adopt(record.Reserved)
		h.logger.InfoContext(h.ctx, "sandbox adopted", "sandbox_id", s.id, "state", record.Status.GetState().String())
		h.owners.Go(func() { s.own(h.ctx, state) })
	}
	for id := range states {
		h.logger.WarnContext(h.ctx, "removing a sandbox that has no record", "sandbox_id", id)
		h.owners.Go(func() { h.removeFromEngine(h.ctx, id) })
	}
	return nil
}

// wait returns when ctx has ended and every owner has returned.
func (h *host) wait() {
	<-h.ctx.Done()
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.owners.Wait()
}

// lookup answers with a sandbox that the runner knows, ended or not.
func (h *host) lookup(id string) (s *sandbox, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok = h.sandboxes[id]
	return s, ok
}

// find is lookup for calls that need the sandbox.
func (h *host) find(id string) (*sandbox, error) {
	if s, ok := h.lookup(id); ok {
		return s, nil
	}
	return nil, apierr.New(apierr.SandboxNotFound, "sandbox %q does not exist on this runner", id)
}

// create starts a sandbox and answers when it runs or has ended.
func (h *host) create(ctx context.Context, request *runnerv1.CreateSandboxRequest) (*runnerv1.SandboxRecord, error) {
	if !sandboxID.MatchString(request.GetSandboxId()) {
		return nil, apierr.New(apierr.InvalidRequest,
			"sandbox_id: %q is not an id; write 1 to 63 of a-z, 0-9 and -", request.GetSandboxId())
	}
	s, err := h.accept(request)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx, s.settled); err != nil {
		return nil, err
	}
	return s.snapshot().message(), nil
}

// accept finds the sandbox of that id, or checks and begins it.
func (h *host) accept(request *runnerv1.CreateSandboxRequest) (*sandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, ok := h.sandboxes[request.GetSandboxId()]; ok {
		return s, nil
	}
	if h.closed {
		return nil, errLeaving()
	}
	resolved, pull, err := h.policies.resolve(request.GetSpec())
	if err != nil {
		return nil, err
	}
	plan, err := newPlan(request, &resolved, pull, h.runtime)
	if err != nil {
		return nil, err
	}
	accepted := record{
		SandboxID:      request.GetSandboxId(),
		OrganizationID: request.GetOrganizationId(),
		Generation:     1,
		Status:         firstStatus(request, &resolved, h.identity().RunnerID, h.runtime),
		Request:        proto.CloneOf(request),
		Container:      plan.container.GetName(),
		Reserved:       plan.reserved,
		Deadline:       request.GetCreateTime().AsTime().Add(time.Duration(resolved.LifetimeSeconds) * time.Second),
	}
	s, err := h.newSandbox(accepted)
	if err != nil {
		return nil, err
	}
	if err := h.ledger.reserve(plan.reserved); err != nil {
		return nil, err
	}
	h.sandboxes[s.id] = s
	h.owners.Go(func() { s.begin(h.ctx, plan) })
	return s, nil
}

// delete ends a sandbox and answers when nothing of it is left; nil when the
// id is unknown.
func (h *host) delete(ctx context.Context, id string, grace time.Duration) (*runnerv1.SandboxRecord, error) {
	s, ok := h.lookup(id)
	if !ok {
		return nil, nil
	}
	s.requestStop("deleted on request", h.clock.Now().Add(grace))
	if err := s.await(ctx, s.gone); err != nil {
		return nil, err
	}
	return s.snapshot().message(), nil
}

// forget drops the record of a sandbox that has ended.
func (h *host) forget(ctx context.Context, id string) error {
	s, ok := h.lookup(id)
	if !ok {
		return nil
	}
	if state := s.snapshot().Status.GetState(); !terminal(state) {
		return apierr.New(apierr.InvalidRequest, "sandbox %s has not ended: its state is %s; delete it first", id, state)
	}
	if err := s.await(ctx, s.gone); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sandboxes[id] != s {
		return nil
	}
	if err := h.records.remove(id); err != nil {
		return err
	}
	delete(h.sandboxes, id)
	return nil
}

// drop takes out a sandbox that was never begun.
func (h *host) drop(s *sandbox) {
	h.mu.Lock()
	delete(h.sandboxes, s.id)
	h.mu.Unlock()
	h.ledger.release(s.record.Reserved)
}

// messages are the records of every sandbox.
func (h *host) messages() []*runnerv1.SandboxRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*runnerv1.SandboxRecord, 0, len(h.sandboxes))
	for _, s := range h.sandboxes {
		all = append(all, s.snapshot().message())
	}
	return all
}

// removeFromEngine tries until it has succeeded (true) or ctx ends.
func (h *host) removeFromEngine(ctx context.Context, id string) bool {
	const firstPause, maxPause = 100 * time.Millisecond, 10 * time.Second
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := h.engine.Remove(ctx, id)
		if err == nil || errors.Is(err, engine.ErrNotFound) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		h.logger.ErrorContext(ctx, "a sandbox could not be removed; trying again", "sandbox_id", id, "error", err, "retry_in", pause)
		if !h.sleep(ctx, pause) {
			return false
		}
	}
}

// sleep answers false when ctx ended first.
func (h *host) sleep(ctx context.Context, d time.Duration) bool {
	timer := h.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// errLeaving is for calls that the process's end interrupts.
func errLeaving() error {
	return apierr.New(apierr.RunnerUnavailable, "the runner is stopping; try again").RetryAfter(time.Second)
}
