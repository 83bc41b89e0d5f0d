package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

const (
	stdoutStream = 1
	stderrStream = 2
	// killPause is between two rounds of SIGKILL while something is still
	// there: dying takes a moment, and a fork may have got through.
	killPause = 5 * time.Millisecond
)

// workload is the main process and what hangs on it.
//
//	new ──start──▶ running ──the process ends──▶ ended ──nothing left──▶ gone
//	 └──stop──▶ gone
type workload struct {
	reaper *reaper
	output *outputLog
	// running is closed when the main process has started.
	running chan struct{}
	// gone is closed when the main process and everything else has ended, and
	// nothing can start any more.
	gone     chan struct{}
	goneOnce sync.Once

	mu       sync.Mutex
	main     *process
	stopped  bool
	deadline time.Duration
	grace    time.Duration
	pumps    []*pump
	current  *guestv1.Status
	changed  chan struct{}
}

func newWorkload(r *reaper) *workload {
	return &workload{
		reaper:  r,
		output:  newOutputLog(),
		running: make(chan struct{}),
		gone:    make(chan struct{}),
		current: &guestv1.Status{},
		changed: make(chan struct{}),
	}
}

// start writes the files and starts the main process.
func (w *workload) start(request *guestv1.Start) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.main != nil {
		return invalid("the main process was started before")
	}
	if w.stopped {
		return invalid("the sandbox was stopped before it was started")
	}
	if request.GetGraceMillis() < 0 {
		return invalid("grace_millis: %d, expected 0 or more", request.GetGraceMillis())
	}
	if request.GetDeadline() != nil && !request.GetDeadline().IsValid() {
		return invalid("deadline: not a valid time")
	}
	if request.GetProcess().GetTty() {
		return invalid("process.tty: the main process has no terminal")
	}
	for _, file := range request.GetFiles() {
		if err := writeFile(file); err != nil {
			return err
		}
	}
	prog, err := newProgram(request.GetProcess())
	if err != nil {
		return startError(err)
	}
	pipes, err := newPipes(false)
	if err != nil {
		return err
	}
	pumps, err := w.newPumps(pipes)
	if err != nil {
		pipes.closeAll()
		return err
	}
	main, err := prog.run(w.reaper, pipes.child, false)
	pipes.closeChild()
	if err != nil {
		pipes.closeAll()
		return startError(err)
	}
	now := time.Now()
	w.main, w.pumps = main, pumps
	if request.GetDeadline() != nil {
		w.deadline = max(request.GetDeadline().AsTime().Sub(now), 1)
		w.grace = millis(request.GetGraceMillis())
	}
	w.setStatusLocked(&guestv1.Status{Started: true, StartTime: timestamppb.New(now)})
	close(w.running)
	return nil
}

func startError(err error) error {
	var cannot *cannotExecuteError
	if errors.As(err, &cannot) {
		return &guest.Error{Code: guestv1.Error_CANNOT_EXECUTE, Message: cannot.message}
	}
	if errors.Is(err, errRefused) {
		return invalid("%v", err)
	}
	return err
}

func (w *workload) newPumps(pipes *stdio) ([]*pump, error) {
	keep := func(stream uint8) func([]byte) error {
		return func(data []byte) error {
			w.output.append(stream, data, time.Now())
			return nil
		}
	}
	stdout, err1 := newPump(pipes.stdout, keep(stdoutStream))
	stderr, err2 := newPump(pipes.stderr, keep(stderrStream))
	return []*pump{stdout, stderr}, firstOf(err1, err2)
}

// run accompanies the main process from its start to its end.
func (w *workload) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-w.running:
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, p := range w.pumps {
		tasks.Go(func() { _ = p.run() })
	}
	watch, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	if w.deadline > 0 {
		tasks.Go(func() { w.enforceDeadline(watch) })
	}

	select {
	case <-ctx.Done():
		w.expirePumps()
		return
	case <-w.main.ended:
	}
	stopWatching()
	w.reaper.refuse()
	w.reaper.killAll()
	w.expirePumps()
	tasks.Wait()
	w.output.close()
	w.announceExit()
	if w.killUntilGone(ctx) == nil {
		w.goneOnce.Do(func() { close(w.gone) })
	}
}

func (w *workload) expirePumps() {
	for _, p := range w.pumps {
		p.expire()
	}
}

// killUntilGone answers nil when only the guest is left.
func (w *workload) killUntilGone(ctx context.Context) error {
	for !w.reaper.collect() {
		w.reaper.killAll()
		if err := sleep(ctx, killPause); err != nil {
			return err
		}
	}
	return nil
}

// enforceDeadline ends everything at the deadline.
func (w *workload) enforceDeadline(ctx context.Context) {
	if waitBoottime(ctx, w.deadline) != nil {
		return
	}
	select {
	case <-w.main.ended:
		return
	default:
	}
	w.mu.Lock()
	w.updateStatusLocked(func(s *guestv1.Status) { s.DeadlineExceeded = true })
	w.mu.Unlock()
	w.main.send(unix.SIGTERM)
	select {
	case <-ctx.Done():
		return
	case <-w.main.ended:
		return
	case <-time.After(w.grace):
	}
	w.main.send(unix.SIGKILL)
}

// stop ends the main process, after a SIGTERM and grace, and everything else.
// It answers nil when only the guest is left.
func (w *workload) stop(ctx context.Context, grace time.Duration) error {
	w.mu.Lock()
	w.stopped = true
	main := w.main
	w.mu.Unlock()
	if main == nil {
		w.goneOnce.Do(func() { close(w.gone) })
		return nil
	}
	if grace > 0 {
		main.send(unix.SIGTERM)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-main.ended:
		case <-timer.C:
		}
	}
	main.send(unix.SIGKILL)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.gone:
		return nil
	}
}

// forward hands a signal to the main process and reports whether one runs.
func (w *workload) forward(signal unix.Signal) bool {
	w.mu.Lock()
	main := w.main
	w.mu.Unlock()
	if main == nil {
		return false
	}
	select {
	case <-main.ended:
		return false
	default:
		main.send(signal)
		return true
	}
}

// isRunning reports whether the main process has started and not ended.
func (w *workload) isRunning() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current.GetStarted() && w.current.GetExit() == nil
}

func (w *workload) exitCode() int32 {
	status, _ := w.status()
	return status.GetExit().GetCode()
}

// status returns the status, which must not be changed, and a channel that is
// closed when there is a newer one.
func (w *workload) status() (*guestv1.Status, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current, w.changed
}

func (w *workload) announceExit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.updateStatusLocked(func(s *guestv1.Status) { s.Exit = exitMessage(w.main.exit) })
}

// updateStatusLocked replaces the status by a changed copy: readers hold the
// old one.
func (w *workload) updateStatusLocked(change func(*guestv1.Status)) {
	next := &guestv1.Status{
		Started:          w.current.GetStarted(),
		StartTime:        w.current.GetStartTime(),
		Exit:             w.current.GetExit(),
		DeadlineExceeded: w.current.GetDeadlineExceeded(),
	}
	change(next)
	w.setStatusLocked(next)
}

func (w *workload) setStatusLocked(status *guestv1.Status) {
	w.current = status
	close(w.changed)
	w.changed = make(chan struct{})
}

func exitMessage(e exit) *guestv1.Exit {
	return &guestv1.Exit{Code: e.code, Signal: e.signal, Time: timestamppb.New(e.time)}
}
