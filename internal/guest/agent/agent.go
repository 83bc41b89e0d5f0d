package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// Config is what an agent needs to know of its place.
type Config struct {
	// Init says that this process is PID 1 of its own process namespace: it
	// then collects every orphan, and may signal every process there is.
	Init bool
	// Linger is how long the agent waits for a Shutdown after the main process
	// has ended, before it gives up and ends; 0: 24 hours.
	Linger time.Duration
}

const defaultLinger = 24 * time.Hour

// Agent serves the calls of a runner. Use New.
type Agent struct {
	linger   time.Duration
	reaper   *reaper
	workload *workload
	// tasks are all goroutines of a Serve, calls those that serve connections.
	tasks sync.WaitGroup
	calls sync.WaitGroup
	// shutdown is closed by the first Shutdown.
	shutdown     chan struct{}
	shutdownOnce sync.Once

	mu          sync.Mutex
	closed      bool
	connections map[*connection]struct{}
}

// New returns an agent that has not started anything.
func New(config Config) *Agent {
	if config.Linger == 0 {
		config.Linger = defaultLinger
	}
	reaper := newReaper(config.Init)
	return &Agent{
		linger:      config.Linger,
		reaper:      reaper,
		workload:    newWorkload(reaper),
		shutdown:    make(chan struct{}),
		connections: map[*connection]struct{}{},
	}
}

// ExitCode is the main process's exit code, or 0 while it has none.
func (a *Agent) ExitCode() int { return int(a.workload.exitCode()) }

// Serve accepts calls on listener, and closes it. It returns nil after a
// Shutdown, an outside termination signal without a running main process, the
// end of ctx, or Linger after the main process's end; every process it started
// has then been killed.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	signals := watchSignals(a.reaper.init)
	a.tasks.Go(func() { signals.run(ctx, a) })
	a.tasks.Go(func() { a.workload.run(ctx) })
	a.tasks.Go(func() { a.lingerAfterExit(ctx) })
	accepted := make(chan error, 1)
	a.tasks.Go(func() { accepted <- a.accept(ctx, listener) })

	var err error
	select {
	case <-ctx.Done():
	case <-a.shutdown:
	case err = <-accepted:
	}
	_ = listener.Close()
	a.refuseCalls()
	a.reaper.refuse()
	a.reaper.killAll()
	a.letCallsEnd(ctx)
	cancel()
	a.closeConnections()
	a.calls.Wait()
	a.tasks.Wait()
	return err
}

// letCallsEnd waits, for lingerTime at most, until every call has told its
// runner how it ended. With no process left there is nothing else to wait for.
func (a *Agent) letCallsEnd(ctx context.Context) {
	ended := make(chan struct{})
	a.tasks.Go(func() {
		a.calls.Wait()
		close(ended)
	})
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// requestShutdown makes Serve return.
func (a *Agent) requestShutdown() { a.shutdownOnce.Do(func() { close(a.shutdown) }) }

func (a *Agent) lingerAfterExit(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.workload.gone:
	}
	if waitBoottime(ctx, a.linger) == nil {
		a.requestShutdown()
	}
}

func (a *Agent) accept(ctx context.Context, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil //nolint:nilerr // The listener closes when the agent ends.
			}
			if isTemporary(err) {
				// Out of descriptors or memory: calls that end make room.
				if sleep(ctx, 10*time.Millisecond) != nil {
					return nil //nolint:nilerr // The agent ends, and wants no more connections.
				}
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		c := newConnection(conn)
		serve := func() {
			defer a.unregister(c)
			a.serve(ctx, c)
		}
		if !a.startCall(c, serve) {
			_ = conn.Close()
		}
	}
}

// startCall serves a connection, unless calls are refused by now.
func (a *Agent) startCall(c *connection, serve func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.connections[c] = struct{}{}
	a.calls.Go(serve)
	return true
}

func (a *Agent) unregister(c *connection) {
	_ = c.conn.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.connections, c)
}

func (a *Agent) refuseCalls() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

func (a *Agent) closeConnections() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.connections {
		_ = c.conn.Close()
	}
}

// serve reads the request of one connection and answers it.
func (a *Agent) serve(ctx context.Context, c *connection) {
	request := &guestv1.Request{}
	if err := c.read(request); err != nil {
		if !errors.Is(err, io.EOF) {
			c.finish(resultOf(invalid("%v", err)))
		}
		return
	}
	switch call := request.GetCall().(type) {
	case *guestv1.Request_Ping:
		c.finish(done())
	case *guestv1.Request_Start:
		c.finish(resultOf(a.workload.start(call.Start)))
	case *guestv1.Request_Watch:
		a.watch(ctx, c)
	case *guestv1.Request_FollowOutput:
		a.followOutput(ctx, c, call.FollowOutput.GetOffset())
	case *guestv1.Request_Exec:
		a.exec(ctx, c, call.Exec)
	case *guestv1.Request_ReadFile:
		c.finish(resultOf(readFile(c, call.ReadFile)))
	case *guestv1.Request_WriteFile:
		c.finish(resultOf(receiveFile(c, call.WriteFile)))
	case *guestv1.Request_Stop:
		a.stop(ctx, c, call.Stop)
	case *guestv1.Request_Shutdown:
		c.finish(done())
		a.requestShutdown()
	default:
		c.finish(resultOf(invalid("a connection begins with a call, got %T", call)))
	}
}

func (a *Agent) stop(ctx context.Context, c *connection, stop *guestv1.Stop) {
	if stop.GetGraceMillis() < 0 {
		c.finish(resultOf(invalid("grace_millis: %d, expected 0 or more", stop.GetGraceMillis())))
		return
	}
	// A stop goes on when the runner that asked for it is gone.
	if err := a.workload.stop(ctx, millis(stop.GetGraceMillis())); err != nil {
		return
	}
	c.finish(done())
}

func (a *Agent) watch(ctx context.Context, c *connection) {
	ctx, cancel := c.untilClosed(ctx)
	defer cancel()
	for {
		status, changed := a.workload.status()
		if err := c.write(&guestv1.Response{Answer: &guestv1.Response_Status{Status: status}}); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.shutdown:
			c.finishWatched(ctx, done())
			return
		case <-changed:
		}
	}
}

func (a *Agent) followOutput(ctx context.Context, c *connection, offset uint64) {
	ctx, cancel := c.untilClosed(ctx)
	defer cancel()
	buf := buffers.get()
	defer buffers.put(buf)
	for {
		output, wait, err := a.workload.output.next(offset, buf[:])
		switch {
		case errors.Is(err, io.EOF):
			c.finishWatched(ctx, done())
			return
		case err != nil:
			c.finishWatched(ctx, resultOf(invalid("offset: %v", err)))
			return
		case wait != nil:
			select {
			case <-ctx.Done():
				return
			case <-wait:
			}
		default:
			if err := c.write(&guestv1.Response{Answer: &guestv1.Response_Output{Output: output}}); err != nil {
				return
			}
			offset = output.GetOffset() + uint64(len(output.GetData()))
		}
	}
}
