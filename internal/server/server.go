package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/grpchealth"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/install"
)

const (
	defaultShutdownGrace = 10 * time.Second
	// drainTimeout bounds how long ending every sandbox may take at shutdown.
	drainTimeout = 2 * time.Minute

	// maxConcurrentStreams is per connection: an SDK keeps one connection, and
	// a stream for each command and each log that it follows.
	maxConcurrentStreams = 10_000
	// The windows let one stream fill a fast network.
	streamWindow     = 4 << 20
	connectionWindow = 16 << 20
)

var (
	errNotServing = errors.New("the server is starting or stopping")
	// errStopping is why requests end that are still there when their grace is
	// over.
	errStopping = errors.New("the server is stopping")
)

// Server is one process: control plane and gateway on one port.
type Server struct {
	cfg       Config
	lock      *os.File
	store     Store
	listener  net.Listener
	tls       *tls.Config
	url       string
	tokens    *auth.Tokens
	fleet     *fleet.Fleet
	gateway   Gateway
	installer Installer
	http      *http.Server

	// health is what gRPC clients and load balancers are told.
	health    *grpchealth.StaticChecker
	serving   atomic.Bool
	ready     chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// Installer puts runners on this host. Close ends its watch over them and
// leaves them as they are.
type Installer interface {
	install.Installer
	io.Closer
}

// parts are what a server is put together from; tests give others.
type parts struct {
	gateway func(cfg Config, store Store, registry *fleet.Registry) Gateway
	local   func(cfg Config, serverURL string) (Installer, error)
	limit   messageLimit
}

// Run serves until ctx ends, and returns when everything has stopped.
func Run(ctx context.Context, cfg Config) error {
	srv, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	return srv.Serve(ctx)
}

// New opens the store and listens; nothing is served before Serve. A server
// that is not served must be closed.
func New(ctx context.Context, cfg Config) (*Server, error) {
	return assemble(ctx, cfg, parts{gateway: newGateway, local: newLocalInstaller, limit: maxRequestBytes})
}

func assemble(ctx context.Context, cfg Config, with parts) (_ *Server, err error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ShutdownGrace == 0 {
		cfg.ShutdownGrace = defaultShutdownGrace
	}
	s := &Server{cfg: cfg, ready: make(chan struct{}), health: grpchealth.NewStaticChecker()}
	s.setServing(false)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.lock, err = lockDir(cfg.DataDir); err != nil {
		return nil, err
	}
	if s.listener, s.tls, err = listen(ctx, cfg); err != nil {
		return nil, err
	}
	s.url = cfg.AdvertiseURL
	if s.url == "" {
		s.url = baseURL(s.listener, s.tls != nil)
	}
	key, err := loadKey(filepath.Join(cfg.DataDir, enrollmentKeyFile))
	if err != nil {
		return nil, err
	}
	if s.store, err = openStore(ctx, cfg); err != nil {
		return nil, err
	}
	if s.installer, err = with.local(cfg, s.url); err != nil {
		return nil, err
	}
	rules, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("set up field rules: %w", err)
	}
	s.tokens = auth.NewTokens(s.store, time.Now, nil)
	s.fleet = fleet.New(fleet.Config{
		Store:         s.store,
		Installers:    map[adminv1.ClusterKind]install.Installer{adminv1.ClusterKind_CLUSTER_KIND_LOCAL: s.installer},
		Release:       fleet.Release{Version: cfg.Version},
		GatewayServer: s.url,
		DefaultPolicy: cfg.DefaultPolicy,
		EnrollmentKey: key,
		Rules:         rules,
		Now:           time.Now,
		NewID:         uuid.NewString,
		Logger:        cfg.Logger,
	})
	s.gateway = with.gateway(cfg, s.store, s.fleet.Registry)
	handler, err := routes(services{
		fleet:   s.fleet,
		tokens:  s.tokens,
		audit:   s.store,
		gateway: s.gateway,
		rules:   rules,
		limit:   with.limit,
		version: cfg.Version,
		ready:   s.checkReady,
		health:  s.health,
		logger:  cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	s.http = newHTTPServer(handler, s.tls, cfg.Logger)
	return s, nil
}

// newHTTPServer sets the limits that hold for every connection. There is no
// time limit on requests: streams last as long as their sandboxes.
func newHTTPServer(handler http.Handler, secure *tls.Config, logger *slog.Logger) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(secure == nil)
	return &http.Server{
		Handler:           handler,
		TLSConfig:         secure,
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxConcurrentStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connectionWindow,
			// A peer that has vanished is noticed, however quiet its streams.
			SendPingTimeout: 30 * time.Second,
			PingTimeout:     15 * time.Second,
		},
	}
}

// Serve serves until ctx ends, and returns when everything has stopped and is
// closed.
func (s *Server) Serve(ctx context.Context) error {
	requests, endRequests := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endRequests(nil)
	s.http.BaseContext = func(net.Listener) context.Context { return requests }
	s.gateway.Start()

	reconciling, stopReconciling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReconciling()
	reconciled := make(chan error, 1)
	served := make(chan error, 1)
	var group errgroup.Group
	group.Go(func() error { reconciled <- s.fleet.Run(reconciling, s.gateway); return nil })
	group.Go(func() error { served <- s.serveHTTP(); return nil })

	s.setServing(true)
	close(s.ready)
	s.cfg.Logger.InfoContext(ctx, "serving", "url", s.url, "version", s.cfg.Version)

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-served:
		served <- nil
	case failure = <-reconciled:
		reconciled <- nil
	}
	// Before anything ends, so that no new work is sent here.
	s.setServing(false)
	stopReconciling()
	failure = errors.Join(failure, <-reconciled)
	stopped := s.stop(context.WithoutCancel(ctx), endRequests)
	failure = errors.Join(failure, <-served, stopped, group.Wait())
	return errors.Join(failure, s.Close())
}

func (s *Server) serveHTTP() error {
	var err error
	if s.tls != nil {
		err = s.http.ServeTLS(s.listener, "", "")
	} else {
		err = s.http.Serve(s.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// stop ends what goes on: the runners of this host when that is wanted, then
// requests, then tunnels.
func (s *Server) stop(ctx context.Context, endRequests context.CancelCauseFunc) error {
	var failures []error
	if s.cfg.AtShutdown != LeaveRunners {
		draining, cancel := context.WithTimeout(ctx, drainTimeout)
		failures = append(failures, s.fleet.StopInstalled(draining, s.gateway,
			adminv1.ClusterKind_CLUSTER_KIND_LOCAL, s.cfg.AtShutdown == EndSandboxes))
		cancel()
	}
	ending, cancel := context.WithTimeout(ctx, s.cfg.ShutdownGrace)
	defer cancel()
	// Requests get half of the grace to end by themselves. Streams do not; they
	// are told, and get the other half.
	half := time.AfterFunc(s.cfg.ShutdownGrace/2, func() { endRequests(errStopping) })
	defer half.Stop()
	if err := s.http.Shutdown(ending); err != nil {
		failures = append(failures, s.http.Close())
	}
	return errors.Join(append(failures, s.gateway.Shutdown(ending))...)
}

// Close releases what New took. Serve does it too.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		var failures []error
		if s.listener != nil {
			if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
				failures = append(failures, err)
			}
		}
		if s.installer != nil {
			failures = append(failures, s.installer.Close())
		}
		if s.store != nil {
			failures = append(failures, s.store.Close())
		}
		if s.lock != nil {
			failures = append(failures, s.lock.Close())
		}
		s.closeErr = errors.Join(failures...)
	})
	return s.closeErr
}

// setServing is what readiness and health answer from now on; those who watch
// are told.
func (s *Server) setServing(serving bool) {
	s.serving.Store(serving)
	status := grpchealth.StatusNotServing
	if serving {
		status = grpchealth.StatusServing
	}
	for _, service := range append(auth.Services(), "") {
		s.health.SetStatus(service, status)
	}
}

func (s *Server) checkReady(ctx context.Context) error {
	if !s.serving.Load() {
		return errNotServing
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return s.store.Ready(ctx)
}

// readyTimeout is how long the store may take to say that it can be read.
const readyTimeout = 5 * time.Second

// URL is the base URL of the server, with the port that was taken.
func (s *Server) URL() string { return s.url }

// Ready is closed when requests are answered.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Tokens issues, lists and revokes API tokens.
func (s *Server) Tokens() *auth.Tokens { return s.tokens }

// EnsureOrganization returns the organization of that name, and makes it when
// it is not there.
func (s *Server) EnsureOrganization(ctx context.Context, name string) (auth.Organization, error) {
	return s.store.EnsureOrganization(ctx, auth.Organization{
		OrganizationID: uuid.NewString(),
		Name:           name,
		CreateTime:     time.Now(),
	})
}

// EnsureLocalCluster returns the cluster that is this host in the
// organization, and registers it under that name and zone when it is not
// there.
func (s *Server) EnsureLocalCluster(ctx context.Context, organizationID, name, zone string) (fleet.Cluster, error) {
	return s.fleet.Clusters.Ensure(ctx, fleet.Cluster{
		OrganizationID: organizationID,
		Name:           name,
		Zone:           zone,
		Kind:           adminv1.ClusterKind_CLUSTER_KIND_LOCAL,
	})
}
