package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
)

// lifetimeReason is the state's reason when the platform ends a sandbox.
func (s *sandbox) lifetimeReason() string {
	return fmt.Sprintf("its maximum lifetime of %d s has passed", s.record.Status.GetEffectiveMaxLifetimeSeconds())
}

// started is a main process that runs.
type started struct {
	process process
	at      time.Time
}

// bringUp takes the sandbox from CREATING to RUNNING, FAILED or TERMINATING.
func (s *sandbox) bringUp(ctx context.Context, p plan, found engine.State) {
	type result struct {
		started started
		err     error
	}
	// One waits for the other: cancel, then receive.
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		started, err := s.create(working, p, found)
		done <- result{started, err}
	}()
	deadline := s.host.clock.NewTimer(s.record.Deadline.Sub(s.host.clock.Now()))
	defer deadline.Stop()

	var outcome result
	select {
	case outcome = <-done:
	case <-s.stopChanged:
		cancel()
		<-done
		s.beginStop(ctx)
		return
	case <-deadline.C():
		cancel()
		<-done
		s.requestStop(s.lifetimeReason(), s.host.clock.Now())
		s.beginStop(ctx)
		return
	}
	switch {
	case outcome.err == nil:
		s.apply(ctx, eventStarted, func(r *record) {
			r.Process = outcome.started.process
			r.Status.StartTime = timestamppb.New(outcome.started.at)
		})
	case ctx.Err() == nil:
		s.logger.WarnContext(ctx, "a sandbox could not be started", "error", outcome.err)
		s.fail(ctx, failure(outcome.err, p.image))
	}
}

// beginStop moves the sandbox to TERMINATING as it was asked to.
func (s *sandbox) beginStop(ctx context.Context) {
	// What is read now includes every change so far.
	select {
	case <-s.stopChanged:
	default:
	}
	request, ok := s.stopRequested()
	if !ok {
		return
	}
	s.apply(ctx, eventStopRequested, func(r *record) {
		r.StopReason, r.KillTime = request.reason, request.kill
		r.Status.StateReason = request.reason
	})
}

// create makes the sandbox and starts its main process, or goes on with what
// an earlier process had of it: a main process is never started twice in the
// same sandbox.
func (s *sandbox) create(ctx context.Context, p plan, found engine.State) (started, error) {
	image, err := s.pull(ctx, p)
	if err != nil {
		return started{}, err
	}
	main, err := mainProcess(p.container, image.Config)
	if err != nil {
		return started{}, err
	}
	if found == engine.StateRunning {
		status, err := s.guestStatus(ctx)
		switch {
		case err == nil && status.GetStarted():
			return started{process: main, at: status.GetStartTime().AsTime()}, nil
		case err == nil:
			return s.startMain(ctx, p, main)
		case ctx.Err() != nil:
			return started{}, err
		}
	}
	if found != 0 {
		if err := s.host.engine.Remove(ctx, s.id); err != nil {
			return started{}, fmt.Errorf("remove what was half made: %w", err)
		}
	}
	p.spec.ImageDigest = image.Digest
	if err := s.host.engine.Create(ctx, p.spec); err != nil {
		return started{}, fmt.Errorf("create the sandbox: %w", err)
	}
	return s.startMain(ctx, p, main)
}

func (s *sandbox) pull(ctx context.Context, p plan) (engine.Image, error) {
	pulling, cancel := context.WithTimeoutCause(ctx, s.host.limits.PullTimeout, errPullTimeout)
	defer cancel()
	disk, err := s.host.engine.Disk(pulling)
	if err != nil {
		return engine.Image{}, fmt.Errorf("pull image %s: %w", p.image, err)
	}
	keep := s.host.limits.DiskReserve.of(disk)
	image, err := s.host.engine.PullImage(pulling, engine.PullRequest{Reference: p.image, Policy: p.pull, KeepFreeBytes: keep}, nil)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(pulling), errPullTimeout) {
		err = fmt.Errorf("%w: %w", errPullTimeout, err)
	}
	if err != nil {
		return engine.Image{}, fmt.Errorf("pull image %s: %w", p.image, err)
	}
	return image, nil
}

func (s *sandbox) startMain(ctx context.Context, p plan, main process) (started, error) {
	start := &guestv1.Start{
		Process:     main.message(),
		Deadline:    timestamppb.New(s.record.Deadline),
		GraceMillis: s.host.limits.DeadlineGrace.Milliseconds(),
	}
	for _, file := range p.container.GetFiles() {
		start.Files = append(start.Files, &guestv1.File{Path: main.absolute(file.GetPath()), Content: file.GetContent()})
	}
	if err := s.guest.Start(ctx, start); err != nil {
		return started{}, fmt.Errorf("start the main process: %w", err)
	}
	return started{process: main, at: s.host.clock.Now()}, nil
}

// errSeen ends a watch that has told what was to be known.
var errSeen = errors.New("seen")

// guestStatus asks the guest how its main process stands.
func (s *sandbox) guestStatus(ctx context.Context) (*guestv1.Status, error) {
	asking, cancel := context.WithTimeout(ctx, s.host.limits.GuestTimeout)
	defer cancel()
	var status *guestv1.Status
	err := s.guest.Watch(asking, func(now *guestv1.Status) error {
		status = now
		return errSeen
	})
	if errors.Is(err, errSeen) {
		return status, nil
	}
	if err == nil {
		err = errors.New("the guest is shutting down")
	}
	return nil, fmt.Errorf("ask the guest for its status: %w", err)
}
