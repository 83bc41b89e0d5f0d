package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

// TunnelPath is where TunnelHandler belongs.
const TunnelPath = tunnel.Path

// Config is what a Gateway is made of. All fields are required.
type Config struct {
	Store   Store
	Runners Runners
	Clock   clock.WithTickerAndDelayedExecution
	// IDs makes ids of sandboxes: unique, 1 to 63 characters of [a-z0-9-], all
	// of one length.
	IDs    func() string
	Logger *slog.Logger
}

// Gateway serves sandboxes. It implements the handlers of SandboxService,
// DiscoveryService, ImageService and EnrollmentService. The caller of the
// first three is auth.PrincipalFrom of the context. Errors are apierr's, or
// wrap what went wrong inside: an interceptor makes them apierr.Connect.
type Gateway struct {
	store    Store
	runners  Runners
	clock    clock.WithTickerAndDelayedExecution
	newID    func() string
	logger   *slog.Logger
	registry *registry

	// ctx ends at Shutdown and with it every session and job.
	ctx        context.Context
	cancel     context.CancelFunc
	background background
}

var (
	_ sandboxv1connect.SandboxServiceHandler   = (*Gateway)(nil)
	_ sandboxv1connect.DiscoveryServiceHandler = (*Gateway)(nil)
	_ adminv1connect.ImageServiceHandler       = (*Gateway)(nil)
	_ runnerv1connect.EnrollmentServiceHandler = (*Gateway)(nil)
)

// New makes a gateway. It serves at once; Start adds what it does on its own.
func New(cfg Config) *Gateway {
	ctx, cancel := context.WithCancel(context.Background())
	return &Gateway{
		store:    cfg.Store,
		runners:  cfg.Runners,
		clock:    cfg.Clock,
		newID:    cfg.IDs,
		logger:   cfg.Logger,
		registry: newRegistry(),
		ctx:      ctx,
		cancel:   cancel,
	}
}

// Start begins the work that nobody asks for: forgetting what ended long ago.
// Sandboxes of earlier processes are taken up when their runner connects.
func (g *Gateway) Start() {
	g.background.Go(g.keepRetention)
}

// Shutdown ends tunnels and jobs and waits for them, at most until ctx ends.
// Calls in progress should have been drained before. What was not finished is
// taken up by the next process.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.cancel()
	done := g.background.close()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the gateway's jobs: %w", ctx.Err())
	}
}

// TunnelHandler takes the tunnels of runners, at TunnelPath. It needs
// HTTP/1.1.
func (g *Gateway) TunnelHandler() http.Handler {
	return tunnel.Handler(tunnel.HandlerOptions[RunnerIdentity]{
		Authenticate: func(ctx context.Context, credential string) (RunnerIdentity, error) {
			identity, err := g.runners.Authenticate(ctx, credential)
			if errors.Is(err, ErrUnknownCredential) {
				return RunnerIdentity{}, fmt.Errorf("%w: %w", tunnel.ErrUnauthorized, err)
			}
			return identity, err
		},
		Serve: func(ctx context.Context, identity RunnerIdentity, conn *tunnel.Conn) {
			done := make(chan struct{})
			if !g.background.Go(func() {
				defer close(done)
				g.serveTunnel(identity, conn)
			}) {
				return
			}
			select {
			case <-done:
			case <-ctx.Done():
				// The HTTP server is gone; the session ends with its connection.
				_ = conn.Close()
				<-done
			}
		},
		Logger: g.logger,
	})
}

// principal is the caller of a public method.
func principal(ctx context.Context) (auth.Principal, error) {
	p, ok := auth.PrincipalFrom(ctx)
	if !ok || p.OrganizationID == "" {
		return auth.Principal{}, apierr.New(apierr.Unauthenticated, "the call carries no credentials; send an API token as a bearer token")
	}
	return p, nil
}

// withDeadline is context.WithDeadline by the gateway's own clock.
func (g *Gateway) withDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := g.clock.AfterFunc(at.Sub(g.clock.Now()), func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// pause waits for d; false when ctx has ended before.
func (g *Gateway) pause(ctx context.Context, d time.Duration) bool {
	timer := g.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// background owns goroutines that outlive the call which started them.
type background struct {
	mu     sync.Mutex
	wg     sync.WaitGroup
	closed bool
}

// Go runs f; false when the gateway has shut down.
func (b *background) Go(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.wg.Go(f)
	return true
}

// close admits no more and answers with a channel that closes when the last
// has returned.
func (b *background) close() <-chan struct{} {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.wg.Wait()
	}()
	return done
}
