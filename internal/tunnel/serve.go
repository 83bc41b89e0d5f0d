package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
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
			return nil
		case errors.Is(err, ErrUnauthorized):
			return err
		}
		if connected {
			pause = firstPause
		}
		wait := pause - time.Duration(opts.Random()*float64(pause)/2)
		opts.Logger.WarnContext(ctx, "the tunnel is down", "error", err, "retry_in", wait)
		if opts.Sleep(ctx, wait) != nil {
			return nil
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
	keepalive := opts.Keepalive.withDefaults()
	handlers := &tracker{handler: opts.Handler}
	base := &http.Server{
		Handler:           handlers,
		ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: handshakeTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              frameSize,
			MaxReceiveBufferPerConnection: connectionWindow,
			MaxReceiveBufferPerStream:     streamWindow,
			SendPingTimeout:               keepalive.Silence,
			PingTimeout:                   keepalive.PingTimeout,
		},
	}
	server := &http2.Server{}
	if err := http2.ConfigureServer(base, server); err != nil {
		return errors.Join(fmt.Errorf("configure HTTP/2: %w", err), conn.Close())
	}

	var drain sync.WaitGroup
	drain.Go(func() {
		select {
		case <-conn.closed:
			return
		case <-ctx.Done():
		}
		// There is no listener to wait for: this only announces the end to the
		// gateway, and HTTP/2 closes the connection after the last stream.
		_ = base.Shutdown(context.WithoutCancel(ctx))
		timer := time.NewTimer(opts.DrainTimeout)
		defer timer.Stop()
		select {
		case <-conn.closed:
		case <-timer.C:
			_ = conn.Close()
		}
	})
	server.ServeConn(conn, &http2.ServeConnOpts{
		// Requests may outlive ctx by the time to drain.
		Context:    context.WithoutCancel(ctx),
		BaseConfig: base,
		Handler:    handlers,
	})
	_ = conn.Close()
	drain.Wait()
	handlers.wait()
	return errEnded
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
