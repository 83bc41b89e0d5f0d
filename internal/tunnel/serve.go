package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// The pauses between attempts to connect.
const (
	firstPause = 200 * time.Millisecond
	maxPause   = 15 * time.Second
)

// Options are what Serve needs.
type Options struct {
	// ServerURL is http://HOST[:PORT] or https://HOST[:PORT]; a path in it is
	// ignored.
	ServerURL string
	// Credential is the runner's secret.
	Credential string
	// TLSConfig is for https; nil means the system's roots.
	TLSConfig *tls.Config
	// Handler answers the gateway's requests.
	Handler http.Handler
	// DrainTimeout is how long requests may go on after the context has ended;
	// new ones are refused meanwhile. The connection ends earlier when none is
	// left, so handlers that would go on for ever should watch that context.
	DrainTimeout time.Duration
	Keepalive    Keepalive
	Logger       *slog.Logger

	// Connected and Disconnected are told of each connection, in turn; either
	// may be nil.
	Connected    func()
	Disconnected func(error)
	// Sleep waits for d or until the context ends; nil means the real clock.
	Sleep func(ctx context.Context, d time.Duration) error
	// Random answers with numbers in [0, 1); nil means the usual source.
	Random func() float64
}

// Serve connects and serves until the context ends, which it answers with nil,
// or until the server does not know the credential, which it answers with
// ErrUnauthorized. Whatever else ends a connection or keeps one from being
// made is logged, and followed by another attempt after a pause: 0.2 s, then
// twice as long each time up to 15 s, each shortened by up to half at random
// so that runners do not all return together. A connection that was made
// starts the pauses anew.
func Serve(ctx context.Context, opts Options) error {
	if opts.Sleep == nil {
		opts.Sleep = sleep
	}
	if opts.Random == nil {
		opts.Random = rand.Float64
	}
	pause := firstPause
	for {
		connected, err := serveOnce(ctx, opts)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // The caller wanted it to end, and how the connection took it is told to Disconnected.
		case errors.Is(err, ErrUnauthorized):
			return err
		}
		if connected {
			pause = firstPause
		}
		wait := pause - time.Duration(opts.Random()*float64(pause)/2)
		opts.Logger.WarnContext(ctx, "the tunnel is down", "error", err, "retry_in", wait)
		if opts.Sleep(ctx, wait) != nil {
			return nil //nolint:nilerr // The caller wanted it to end; err has been logged.
		}
		pause = min(2*pause, maxPause)
	}
}

// errEnded is why a connection that was not ended by an error has ended.
var errEnded = errors.New("the connection has ended")

func serveOnce(ctx context.Context, opts Options) (connected bool, err error) {
	conn, err := dial(ctx, opts)
	if err != nil {
		return false, err
	}
	opts.Logger.InfoContext(ctx, "the tunnel is up", "server", opts.ServerURL)
	if opts.Connected != nil {
		opts.Connected()
	}
	err = serveConn(ctx, conn, opts)
	if opts.Disconnected != nil {
		opts.Disconnected(err)
	}
	return true, err
}

// serveConn answers requests until the connection ends, and returns when every
// handler has.
func serveConn(ctx context.Context, conn *upgradedConn, opts Options) error {
	handlers := &tracker{handler: opts.Handler}
	config := http2Config(opts.Keepalive.withDefaults())
	config.MaxConcurrentStreams = maxStreams
	config.MaxReadFrameSize = frameSize
	server := &http.Server{
		Handler: handlers,
		// Requests may outlive ctx by the time to drain.
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: handshakeTimeout,
		Protocols:         http2Only(),
		HTTP2:             config,
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		_ = server.Serve(newListener(conn)) // returns what ended it: the calls of Shutdown and Close below
	})
	select {
	case <-conn.closed:
	case <-ctx.Done():
		drain(ctx, server, conn, opts.DrainTimeout)
	}
	_ = server.Close()
	_ = conn.Close()
	serving.Wait()
	handlers.wait()
	return errEnded
}

// drain announces the end to the gateway and lets requests finish for a while.
// HTTP/2 closes the connection after the last of them.
func drain(ctx context.Context, server *http.Server, conn *upgradedConn, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-conn.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	// It fails when the time was too short, and its caller closes the connection.
	_ = server.Shutdown(ctx)
	cancel()
	waiting.Wait()
}

// tracker knows which handlers run: HTTP/2 does not wait for them.
type tracker struct {
	handler http.Handler

	mu      sync.Mutex
	running sync.WaitGroup
	ended   bool
}

func (t *tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !t.enter() {
		return
	}
	defer t.running.Done()
	t.handler.ServeHTTP(w, r)
}

func (t *tracker) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.running.Add(1)
	return true
}

func (t *tracker) wait() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.running.Wait()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
