package runner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

// drainTimeout is how long calls may take to come to an end with the runner.
const drainTimeout = 2 * time.Second

// runner is one process's runner.
type runner struct {
	config     Config
	info       engine.Info
	enrollment *enrollment
	policies   *policyCache
	ledger     *ledger
	hub        *hub
	// id is nil until the first enrolment.
	id atomic.Pointer[identity]
	// handler answers the gateway.
	handler http.Handler
	// active is closed when the process has the lock and serves sandboxes.
	active chan struct{}
}

// Run runs a runner until the context ends, which it answers with nil.
// Sandboxes stay as they are, for the next process to adopt.
func Run(ctx context.Context, config Config) error {
	if err := config.complete(); err != nil {
		return err
	}
	r, client, err := newRunner(ctx, config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	service := &service{runner: r, leaving: ctx}
	r.handler = service.handler()
	group.Go(func() error { return r.serve(ctx, service) })
	group.Go(func() error { return r.connect(ctx) })
	return group.Wait()
}

func newRunner(ctx context.Context, config Config) (*runner, *http.Client, error) {
	info, err := config.Engine.Info(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the engine what it is: %w", err)
	}
	if err := os.MkdirAll(config.StateDirectory, 0o700); err != nil {
		return nil, nil, fmt.Errorf("open the state directory: %w", err)
	}
	policies, err := openPolicyCache(filepath.Join(config.StateDirectory, "policy.pb"))
	if err != nil {
		return nil, nil, err
	}
	total := amount{
		CPUMillis:   orDefault(config.Limits.CPUMillis, config.Limits.OvercommitCPU.of(info.CPUMillis)),
		MemoryBytes: orDefault(config.Limits.MemoryBytes, config.Limits.OvercommitMemory.of(info.MemoryBytes)),
		GPUCount:    info.GPUCount,
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: config.TLS.Clone(),
		// HTTP/1.1 is all that the few calls need, as the tunnel does.
		IdleConnTimeout: 90 * time.Second,
	}}
	return &runner{
		config:     config,
		info:       info,
		enrollment: newEnrollment(&config, client),
		policies:   policies,
		ledger:     newLedger(total, config.Limits.MaxSandboxes),
		hub:        newHub(),
		active:     make(chan struct{}),
	}, client, nil
}

func (r *runner) identity() identity {
	if id := r.id.Load(); id != nil {
		return *id
	}
	return identity{}
}

// serve waits for the lock, adopts what there is and serves sandboxes.
func (r *runner) serve(ctx context.Context, s *service) error {
	waiting := func() {
		r.config.Logger.InfoContext(ctx, "in standby: another process serves this state directory")
	}
	lock, err := lockDirectory(ctx, r.config.Clock, r.config.StateDirectory, waiting)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	host, err := newHost(ctx, r)
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	s.host.Store(host)
	close(r.active)
	r.config.Logger.InfoContext(ctx, "serving sandboxes", "runtime", r.info.Runtime, "runtime_version", r.info.RuntimeVersion)
	host.wait()
	return lock.Close()
}

// session serves the tunnel and sends heartbeats with one credential, until
// ctx ends (nil) or the server refuses it (tunnel.ErrUnauthorized).
func (r *runner) session(ctx context.Context, secret string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return tunnel.Serve(ctx, tunnel.Options{
			ServerURL:    r.config.ServerURL,
			Credential:   secret,
			TLSConfig:    r.config.TLS,
			Handler:      r.handler,
			DrainTimeout: drainTimeout,
			Logger:       r.config.Logger,
			Sleep: func(ctx context.Context, d time.Duration) error {
				if !r.sleep(ctx, d) {
					return ctx.Err()
				}
				return nil
			},
		})
	})
	group.Go(func() error { return r.sendHeartbeats(ctx, secret) })
	return group.Wait()
}

func (r *runner) sendHeartbeats(ctx context.Context, secret string) error {
	ticker := r.config.Clock.NewTicker(r.config.Limits.HeartbeatInterval)
	defer ticker.Stop()
	for {
		err := r.enrollment.heartbeat(ctx, secret, r.ledger.capacity())
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, tunnel.ErrUnauthorized):
			return err
		case err != nil:
			r.config.Logger.WarnContext(ctx, "a heartbeat failed", "error", err)
		}
		select {
		case <-ticker.C():
		case <-r.ledger.news:
		case <-ctx.Done():
			return nil
		}
	}
}

// sleep answers false when ctx ended first.
func (r *runner) sleep(ctx context.Context, d time.Duration) bool {
	timer := r.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
