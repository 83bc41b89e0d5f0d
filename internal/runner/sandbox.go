package runner

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/guest"
	"github.com/sandbar-project/sandbar/internal/runner/outputlog"
)

// sandbox is one sandbox. Its owner goroutine alone changes the record.
type sandbox struct {
	id     string
	host   *host
	guest  *guest.Client
	output *outputlog.Log
	logger *slog.Logger

	// settled is closed when the sandbox has left CREATING.
	settled chan struct{}
	// gone is closed when the engine has nothing of it any more.
	gone chan struct{}
	// detached is closed when the owner has returned.
	detached chan struct{}
	// refused, when detached, is why the sandbox was never begun.
	refused error
	// stopChanged has room for one.
	stopChanged chan struct{}
	// evicted has room for one reason.
	evicted chan string
	// unsaved, of the owner: what is on disk is older than the record.
	unsaved bool
	// removed, of the owner: the engine has nothing of it.
	removed bool

	mu     sync.Mutex
	record record
	stop   *stopRequest
}

// stopRequest is why the sandbox shall end, and when SIGKILL is due.
type stopRequest struct {
	reason string
	kill   time.Time
}

func (h *host) newSandbox(r record) (*sandbox, error) {
	output, err := outputlog.Open(h.records.outputDir(r.SandboxID), h.limits.LogBytes)
	if err != nil {
		return nil, err
	}
	s := &sandbox{
		id:          r.SandboxID,
		host:        h,
		output:      output,
		logger:      h.logger.With("sandbox_id", r.SandboxID, "org_id", r.OrganizationID),
		settled:     make(chan struct{}),
		gone:        make(chan struct{}),
		detached:    make(chan struct{}),
		stopChanged: make(chan struct{}, 1),
		evicted:     make(chan string, 1),
		record:      r,
	}
	s.guest = guest.NewClient(func(ctx context.Context) (net.Conn, error) { return h.engine.Dial(ctx, s.id) })
	if r.StopReason != "" {
		s.stop = &stopRequest{reason: r.StopReason, kill: r.KillTime}
	}
	if r.Status.GetState() != sandboxv1.State_STATE_CREATING {
		close(s.settled)
	}
	return s, nil
}

// snapshot is the record now; its messages are not to be changed.
func (s *sandbox) snapshot() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// await waits for settled or gone; an owner that has returned before either
// leaves the rest to the next process.
func (s *sandbox) await(ctx context.Context, reached <-chan struct{}) error {
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.detached:
	}
	select {
	case <-reached:
		return nil
	default:
	}
	if s.refused != nil {
		return s.refused
	}
	return errLeaving()
}

func (s *sandbox) state() sandboxv1.State { return s.snapshot().Status.GetState() }

// running answers with the record of a sandbox that can be worked in.
func (s *sandbox) running() (record, error) {
	r := s.snapshot()
	if state := r.Status.GetState(); state != sandboxv1.State_STATE_RUNNING {
		return record{}, errNotRunning(s.id, state)
	}
	return r, nil
}

func errNotRunning(id string, state sandboxv1.State) error {
	return apierr.New(apierr.SandboxNotRunning, "sandbox %s is not running: its state is %s", id, state).
		With("sandbox_id", id).With("state", state.String())
}

// requestStop asks the owner to end the sandbox. The earliest kill time holds,
// and the first reason.
func (s *sandbox) requestStop(reason string, kill time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stop == nil:
		s.stop = &stopRequest{reason: reason, kill: kill}
	case kill.Before(s.stop.kill):
		s.stop.kill = kill
	default:
		return
	}
	select {
	case s.stopChanged <- struct{}{}:
	default:
	}
}

// evict asks the owner to end the sandbox at once, for the sake of the others.
func (s *sandbox) evict(reason string) {
	if s.state() == sandboxv1.State_STATE_TERMINATING {
		s.requestStop(reason, s.host.clock.Now())
		return
	}
	select {
	case s.evicted <- reason:
	default:
	}
}

// stopRequested answers with a copy; ok is false when nobody has asked.
func (s *sandbox) stopRequested() (request stopRequest, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return stopRequest{}, false
	}
	return *s.stop, true
}

// apply moves the sandbox along the table. change edits the new record, whose
// status has its new state already. What others see is on disk before.
func (s *sandbox) apply(ctx context.Context, e event, change func(*record)) {
	r := s.snapshot()
	from := r.Status.GetState()
	to, ok := next(from, e)
	if !ok {
		return
	}
	r.Status = proto.CloneOf(r.Status)
	r.Status.State = to
	r.Generation++
	r.Request = nil
	if terminal(to) {
		r.Status.EndTime = timestamppb.New(s.host.clock.Now())
	}
	if change != nil {
		change(&r)
	}
	for _, container := range r.Status.ContainerStatuses {
		container.State = to
		container.ExitCode = r.Status.GetExitCode()
	}
	s.save(ctx, r)
	s.mu.Lock()
	s.record = r
	s.mu.Unlock()
	s.logger.InfoContext(ctx, "sandbox changed", "event", string(e), "state", to.String(), "reason", r.Status.GetStateReason())
	s.host.hub.publish(r.message())
	if from == sandboxv1.State_STATE_CREATING {
		close(s.settled)
	}
	if terminal(to) {
		s.output.Finish()
	}
}

// save writes the record. When that fails the sandbox goes on: what is on disk
// is older but true, and a restart finds out the rest from the engine.
func (s *sandbox) save(ctx context.Context, r record) {
	err := s.host.records.put(r)
	s.unsaved = err != nil
	if err != nil {
		s.logger.ErrorContext(ctx, "a sandbox's record could not be written", "error", err)
	}
}

func (s *sandbox) fail(ctx context.Context, reason string) {
	s.apply(ctx, eventFailed, func(r *record) { r.Status.StateReason = reason })
}

// begin is the owner of a new sandbox.
func (s *sandbox) begin(ctx context.Context, p plan) {
	err := s.host.records.create(s.record)
	if err != nil {
		reason := apierr.Internal
		if errors.Is(err, syscall.ENOSPC) {
			reason = apierr.StorageFull
		}
		s.refused = apierr.New(reason, "the runner could not record the sandbox; its log has the details").Because(err)
		s.logger.ErrorContext(ctx, "a sandbox could not be recorded", "error", err)
		if err := s.host.records.remove(s.id); err != nil {
			s.logger.ErrorContext(ctx, "what was recorded could not be removed", "error", err)
		}
		s.host.drop(s)
		close(s.detached)
		return
	}
	s.host.hub.publish(s.record.message())
	s.run(ctx, p, 0)
}

// own is the owner of a sandbox that an earlier process began; found is how
// the engine has it, 0 when not at all.
func (s *sandbox) own(ctx context.Context, found engine.State) {
	var p plan
	if request := s.record.Request; request != nil {
		var err error
		if p, err = s.planAgain(); err != nil {
			s.fail(ctx, err.Error())
		}
	}
	s.removed = found == 0 && terminal(s.state())
	s.run(ctx, p, found)
}

// planAgain plans the request that is on record. The policy of now decides:
// the sandbox has not started.
func (s *sandbox) planAgain() (plan, error) {
	resolved, pull, err := s.host.policies.resolve(s.record.Request.GetSpec())
	if err != nil {
		return plan{}, err
	}
	return newPlan(s.record.Request, &resolved, pull, s.host.runtime)
}

// run takes the sandbox from whatever state it is in to its end, or returns
// when ctx ends.
func (s *sandbox) run(ctx context.Context, p plan, found engine.State) {
	defer close(s.detached)
	defer s.closeOutput(ctx)
	if s.state() == sandboxv1.State_STATE_CREATING {
		s.bringUp(ctx, p, found)
	}
	if state := s.state(); state == sandboxv1.State_STATE_RUNNING || state == sandboxv1.State_STATE_TERMINATING {
		attached := s.attach(ctx)
		s.supervise(ctx, attached)
		s.terminate(ctx, attached)
		attached.detach()
	}
	if terminal(s.state()) {
		s.cleanUp(ctx)
	}
}

func (s *sandbox) closeOutput(ctx context.Context) {
	if err := s.output.Close(); err != nil {
		s.logger.ErrorContext(ctx, "a sandbox's output log could not be closed", "error", err)
	}
}

// cleanUp removes what is left of a sandbox that has ended.
func (s *sandbox) cleanUp(ctx context.Context) {
	if !s.remove(ctx) {
		return
	}
	if s.unsaved {
		// The disk was full, and now has what the sandbox had of it.
		s.save(ctx, s.snapshot())
	}
	s.host.ledger.release(s.record.Reserved)
	close(s.gone)
}

// remove takes the sandbox from the engine, once; false: ctx ended before.
func (s *sandbox) remove(ctx context.Context) bool {
	if !s.removed {
		s.removed = s.host.removeFromEngine(ctx, s.id)
	}
	return s.removed
}

// failure says in a sentence why a sandbox could not be started.
func failure(err error, image string) string {
	var refusal *guest.Error
	var pull *engine.PullError
	switch {
	case errors.As(err, &refusal):
		return "the main process could not be started: " + refusal.Message
	case errors.Is(err, errPullTimeout) && errors.As(err, &pull):
		return "image pull failed: it took too long: " + pull.Error()
	case errors.Is(err, errPullTimeout):
		return "image pull failed: it took too long: " + image
	case errors.As(err, &pull):
		return "image pull failed: " + pull.Error()
	case errors.Is(err, errNoProgram):
		return "image " + image + ": " + errNoProgram.Error()
	case errors.Is(err, engine.ErrImageInvalid):
		return "image " + image + " cannot be used here; the runner's log has the details"
	case errors.Is(err, engine.ErrNoSpace):
		return "the disk of the runner has no room for the image or the sandbox; prune images, delete sandboxes, or free space on that disk"
	case errors.Is(err, engine.ErrRuntimeUnavailable):
		return "the runner's container runtime does not work; its log has the details"
	}
	return "the sandbox could not be created; the runner's log has the details"
}

var (
	errPullTimeout = errors.New("image pull timed out")
	errNoProgram   = errors.New("it names no program to run; set the container's command")
)
