package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const goodCredential = "good"

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// unhurried takes no machine that is merely slow for a dead one.
var unhurried = Keepalive{Silence: 5 * time.Minute, PingTimeout: 5 * time.Minute}

// gateway is the accepting end.
type gateway struct {
	server *httptest.Server
	conns  chan *Conn
}

func newGateway(t *testing.T, secure bool, keepalive Keepalive) *gateway {
	t.Helper()
	g := &gateway{conns: make(chan *Conn, 16)}
	ctx, cancel := context.WithCancel(context.Background())
	tunnels := &tracker{handler: Handler(HandlerOptions[string]{
		Authenticate: func(_ context.Context, credential string) (string, error) {
			switch credential {
			case goodCredential:
				return "runner-1", nil
			case "broken":
				return "", errors.New("the store is down")
			}
			return "", fmt.Errorf("look up: %w", ErrUnauthorized)
		},
		Serve: func(_ context.Context, identity string, conn *Conn) {
			if identity != "runner-1" {
				t.Errorf("identity = %q", identity)
			}
			g.conns <- conn
			select {
			case <-conn.Done():
			case <-ctx.Done():
			}
		},
		Keepalive: keepalive,
		Logger:    slog.New(slog.DiscardHandler),
	})}
	g.server = httptest.NewUnstartedServer(tunnels)
	if secure {
		g.server.StartTLS()
	} else {
		g.server.Start()
	}
	t.Cleanup(func() {
		cancel()
		tunnels.wait()
		g.server.Close()
	})
	return g
}

// options are those of a runner that trusts this gateway.
func (g *gateway) options(handler http.Handler) Options {
	opts := Options{
		ServerURL:  g.server.URL,
		Credential: goodCredential,
		Handler:    handler,
		Keepalive:  unhurried,
		Logger:     slog.New(slog.DiscardHandler),
	}
	if g.server.TLS != nil {
		transport, _ := g.server.Client().Transport.(*http.Transport)
		opts.TLSConfig = &tls.Config{RootCAs: transport.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
	}
	return opts
}

// start serves in the background until the test ends.
func start(t *testing.T, opts Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := Serve(ctx, opts); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func request(ctx context.Context, t *testing.T, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runner"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func overTCPAndTLS(t *testing.T, test func(t *testing.T, secure bool)) {
	t.Helper()
	t.Run("TCP", func(t *testing.T) { test(t, false) })
	t.Run("TLS", func(t *testing.T) { test(t, true) })
}
