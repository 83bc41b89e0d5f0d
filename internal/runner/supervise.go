package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/runner/outputlog"
)

// killedCode is the exit code of a process that SIGKILL ended, as the shell
// passes it on, too.
const killedCode = 128 + 9

// attachment listens to a sandbox that has been made: to its main process, to
// its guest's end, and to the output.
type attachment struct {
	// exited has the status once the main process has ended.
	exited chan *guestv1.Status
	// lost has what the engine knows once the guest has gone.
	lost chan engine.Exit
	// drained is closed when all output has been kept.
	drained chan struct{}

	// Of the owner: what came out of exited.
	status *guestv1.Status

	cancel    context.CancelFunc
	listeners sync.WaitGroup
}

func (s *sandbox) attach(ctx context.Context) *attachment {
	ctx, cancel := context.WithCancel(ctx)
	a := &attachment{
		exited:  make(chan *guestv1.Status, 1),
		lost:    make(chan engine.Exit, 1),
		drained: make(chan struct{}),
		cancel:  cancel,
	}
	a.listeners.Go(func() { s.listenForExit(ctx, a) })
	a.listeners.Go(func() { s.listenForLoss(ctx, a) })
	a.listeners.Go(func() { s.keepOutput(ctx, a) })
	return a
}

func (a *attachment) detach() {
	a.cancel()
	a.listeners.Wait()
}

// listenPause is between attempts to reach a guest that does not answer.
const listenPause = 200 * time.Millisecond

func (s *sandbox) listenForExit(ctx context.Context, a *attachment) {
	for {
		err := s.guest.Watch(ctx, func(status *guestv1.Status) error {
			if status.GetExit() == nil {
				return nil
			}
			a.exited <- status
			return errSeen
		})
		if errors.Is(err, errSeen) || !s.host.sleep(ctx, listenPause) {
			return
		}
	}
}

func (s *sandbox) listenForLoss(ctx context.Context, a *attachment) {
	for {
		exit, err := s.host.engine.Wait(ctx, s.id)
		if err == nil || errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotRunning) {
			a.lost <- exit
			return
		}
		if ctx.Err() == nil {
			s.logger.WarnContext(ctx, "a sandbox's guest cannot be waited for; trying again", "error", err)
		}
		if !s.host.sleep(ctx, listenPause) {
			return
		}
	}
}

// keepOutput copies the main process's output into the log until it ends. A
// log that cannot be written loses output, never the sandbox.
func (s *sandbox) keepOutput(ctx context.Context, a *attachment) {
	complained := false
	keep := func(output *guestv1.Output) error {
		record := outputlog.Record{
			Time: output.GetTime().AsTime(), Stream: uint8(output.GetStream()), Data: output.GetData(),
		}
		err := s.output.Append(record, output.GetOffset()+uint64(len(output.GetData())))
		if err != nil && !complained {
			complained = true
			s.logger.ErrorContext(ctx, "a sandbox's output is being lost", "error", err)
		}
		return nil
	}
	for {
		err := s.guest.FollowOutput(ctx, s.output.Source(), keep)
		if err == nil || errors.Is(err, engine.ErrNotRunning) || errors.Is(err, engine.ErrNotFound) {
			close(a.drained)
			return
		}
		if !s.host.sleep(ctx, listenPause) {
			return
		}
	}
}

// supervise takes a RUNNING sandbox to COMPLETED, FAILED or TERMINATING.
func (s *sandbox) supervise(ctx context.Context, a *attachment) {
	if s.state() != sandboxv1.State_STATE_RUNNING {
		return
	}
	deadline := s.host.clock.NewTimer(s.record.Deadline.Sub(s.host.clock.Now()))
	defer deadline.Stop()
	select {
	case a.status = <-a.exited:
		s.mainExited(ctx, a)
	case exit := <-a.lost:
		select {
		case a.status = <-a.exited:
			s.mainExited(ctx, a)
		default:
			s.guestLost(ctx, exit)
		}
	case <-s.stopChanged:
		s.beginStop(ctx)
	case reason := <-s.evicted:
		s.evictNow(ctx, a, reason)
	case <-deadline.C():
		s.requestStop(s.lifetimeReason(), s.host.clock.Now().Add(s.host.limits.DeadlineGrace))
		s.beginStop(ctx)
	case <-ctx.Done():
	}
}

// mainExited ends a sandbox whose main process has ended without being asked
// to, or because the guest's own deadline came first.
func (s *sandbox) mainExited(ctx context.Context, a *attachment) {
	if a.status.GetDeadlineExceeded() {
		s.requestStop(s.lifetimeReason(), s.host.clock.Now())
		s.beginStop(ctx)
		return
	}
	exit := a.status.GetExit()
	oom := exit.GetCode() == killedCode && s.oomKilled(ctx)
	// Whatever the main process left behind would keep the output open.
	if err := s.call(ctx, 0, func(ctx context.Context) error { return s.guest.Stop(ctx, 0) }); err != nil && ctx.Err() == nil {
		s.logger.WarnContext(ctx, "a guest could not end what was left", "error", err)
	}
	s.drain(ctx, a)
	if ctx.Err() != nil {
		return
	}
	e := eventExited
	if oom {
		e = eventFailed
	}
	s.apply(ctx, e, func(r *record) {
		r.Status.ExitCode = proto.Int32(exit.GetCode())
		if oom {
			r.Status.StateReason = oomReason
		}
	})
}

// evictNow ends a sandbox without grace and fails it; its files go with it.
func (s *sandbox) evictNow(ctx context.Context, a *attachment, reason string) {
	err := s.call(ctx, 0, func(ctx context.Context) error { return s.guest.Stop(ctx, 0) })
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		s.drain(ctx, a)
	default:
		s.logger.WarnContext(ctx, "a guest did not stop its main process; removing the sandbox", "error", err)
	}
	if ctx.Err() == nil {
		s.fail(ctx, reason)
	}
}

const oomReason = "OOM killed: the sandbox used more memory than its limit"

func (s *sandbox) oomKilled(ctx context.Context) bool {
	measuring, cancel := context.WithTimeout(ctx, s.host.limits.GuestTimeout)
	defer cancel()
	usage, err := s.host.engine.Usage(measuring, s.id)
	if err != nil {
		s.logger.WarnContext(ctx, "a sandbox could not be measured", "error", err)
	}
	return usage.OOMKills > 0
}

func (s *sandbox) guestLost(ctx context.Context, exit engine.Exit) {
	if ctx.Err() != nil {
		return
	}
	reason := "the sandbox ended unexpectedly: its guest is gone"
	if exit.OOMKilled {
		reason = oomReason
	}
	s.fail(ctx, reason)
}

// terminate takes a TERMINATING sandbox to TERMINATED. The guest has its
// chance; then the engine removes everything.
func (s *sandbox) terminate(ctx context.Context, a *attachment) {
	if s.state() != sandboxv1.State_STATE_TERMINATING {
		return
	}
	stopped := s.stopMain(ctx, a)
	if ctx.Err() != nil {
		return
	}
	if stopped {
		s.drain(ctx, a)
		s.learnExit(ctx, a)
		if err := s.call(ctx, 0, s.guest.Shutdown); err != nil && ctx.Err() == nil {
			s.logger.WarnContext(ctx, "a guest did not shut down", "error", err)
		}
	}
	if !s.remove(ctx) {
		return
	}
	s.apply(ctx, eventEnded, func(r *record) {
		if a.status != nil {
			r.Status.ExitCode = proto.Int32(a.status.GetExit().GetCode())
		}
	})
}

// stopMain has the guest end the main process; false means that the guest is
// gone or hangs.
func (s *sandbox) stopMain(ctx context.Context, a *attachment) bool {
	for {
		stopping, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- s.stopByKillTime(stopping) }()
		var err error
		sooner := false
		select {
		case err = <-done:
			cancel()
		case <-a.lost:
			cancel()
			err = errors.Join(engine.ErrNotRunning, <-done)
		case <-s.stopChanged:
			cancel()
			sooner = true
			err = <-done // cut short, to be repeated
		}
		switch {
		case sooner:
			continue
		case err != nil && ctx.Err() == nil:
			s.logger.WarnContext(ctx, "a guest did not stop its main process; removing the sandbox", "error", err)
		}
		return err == nil
	}
}

// stopByKillTime leaves the main process what is left of its grace.
func (s *sandbox) stopByKillTime(ctx context.Context) error {
	grace := time.Duration(0)
	if request, ok := s.stopRequested(); ok {
		grace = max(request.kill.Sub(s.host.clock.Now()), 0)
	}
	return s.call(ctx, grace, func(ctx context.Context) error { return s.guest.Stop(ctx, grace) })
}

// learnExit waits for the status that follows a stop.
func (s *sandbox) learnExit(ctx context.Context, a *attachment) {
	if a.status != nil {
		return
	}
	timeout := s.host.clock.NewTimer(s.host.limits.GuestTimeout)
	defer timeout.Stop()
	select {
	case a.status = <-a.exited:
	case <-a.lost:
	case <-timeout.C():
	case <-ctx.Done():
	}
}

// drain waits for the rest of the output.
func (s *sandbox) drain(ctx context.Context, a *attachment) {
	timeout := s.host.clock.NewTimer(s.host.limits.GuestTimeout)
	defer timeout.Stop()
	select {
	case <-a.drained:
	case <-timeout.C():
		s.logger.WarnContext(ctx, "the end of a sandbox's output did not come")
	case <-ctx.Done():
	}
}

// call bounds a call to the guest by what it takes anyway and the guest's
// timeout.
func (s *sandbox) call(ctx context.Context, takes time.Duration, do func(context.Context) error) error {
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := s.host.clock.NewTimer(takes + s.host.limits.GuestTimeout)
	defer timer.Stop()
	done := make(chan error, 1)
	go func() { done <- do(bounded) }()
	select {
	case err := <-done:
		return err
	case <-timer.C():
		cancel()
		return <-done
	}
}
