package server

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/install"
)

func TestMain(m *testing.M) {
	if runKilledServer() {
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// fakeGateway has no runners: what it is asked, it remembers.
type fakeGateway struct {
	sandboxv1connect.UnimplementedSandboxServiceHandler
	sandboxv1connect.UnimplementedDiscoveryServiceHandler
	adminv1connect.UnimplementedImageServiceHandler
	runnerv1connect.UnimplementedEnrollmentServiceHandler

	mu      sync.Mutex
	drained []gateway.RunnerKey
}

func (f *fakeGateway) PushPolicy(context.Context, gateway.RunnerKey, gateway.PolicySnapshot) error {
	return nil
}

func (f *fakeGateway) DrainRunner(_ context.Context, key gateway.RunnerKey, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drained = append(f.drained, key)
	return nil
}

func (f *fakeGateway) PlanPolicy(context.Context, gateway.RunnerKey, gateway.PolicySnapshot, gateway.PolicySnapshot) (*adminv1.PolicyPlan, error) {
	return &adminv1.PolicyPlan{}, nil
}

func (f *fakeGateway) TunnelHandler() http.Handler { return http.NotFoundHandler() }
func (f *fakeGateway) Start()                      {}

func (f *fakeGateway) Shutdown(context.Context) error { return nil }

// fakeInstaller holds revisions in memory.
type fakeInstaller struct {
	mu        sync.Mutex
	installed map[string][]int32
	// tokens are the enrolment tokens by runner.
	tokens map[string]string
}

func newFakeInstaller() *fakeInstaller {
	return &fakeInstaller{installed: map[string][]int32{}, tokens: map[string]string{}}
}

func (f *fakeInstaller) token(runnerID string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tokens[runnerID]
}

func (f *fakeInstaller) Ensure(_ context.Context, target install.Target) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens[target.RunnerID] = target.EnrollmentToken
	if !slices.Contains(f.installed[target.RunnerID], target.Revision) {
		f.installed[target.RunnerID] = append(f.installed[target.RunnerID], target.Revision)
	}
	return nil
}

func (f *fakeInstaller) Observe(context.Context, string, string, int32) (install.Observation, error) {
	return install.Observation{Phase: install.PhaseStarting}, nil
}

func (f *fakeInstaller) Revisions(_ context.Context, _, runnerID string) ([]int32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.installed[runnerID]), nil
}

func (f *fakeInstaller) Retire(_ context.Context, _, runnerID string, revision int32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.installed[runnerID] = slices.DeleteFunc(f.installed[runnerID], func(r int32) bool { return r == revision })
	return nil
}

func (f *fakeInstaller) Uninstall(_ context.Context, _, runnerID string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.installed, runnerID)
	return nil
}

func (f *fakeInstaller) Close() error { return nil }

// testLimit of messages is smaller than the contract's, which take long to make.
const testLimit = 16 << 20

// world is a server that serves, with an organization, tokens and a cluster.
type world struct {
	*Server

	client  *http.Client
	org     auth.Organization
	cluster fleet.Cluster
	admin   auth.Secret
	user    auth.Secret
	gateway *fakeGateway
	install *fakeInstaller
	stop    func() error
}

func start(t *testing.T, change func(*Config)) *world {
	t.Helper()
	return startWith(t, change, nil)
}

// startWith has another gateway than the fake one; nil: the fake one.
func startWith(t *testing.T, change func(*Config), other func(Config, Store, *fleet.Registry) Gateway) *world {
	t.Helper()
	cfg := Config{
		DataDir: t.TempDir(),
		Listen:  "127.0.0.1:0",
		Version: "1.0.0",
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&cfg)
	}
	w := &world{gateway: &fakeGateway{}, install: newFakeInstaller()}
	if other == nil {
		other = func(Config, Store, *fleet.Registry) Gateway { return w.gateway }
	}
	srv, err := assemble(t.Context(), cfg, parts{
		gateway: other,
		local:   func(Config, string) (Installer, error) { return w.install, nil },
		limit:   testLimit,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Server = srv
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx) }()
	w.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	transport := &http.Transport{}
	w.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := w.stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	<-srv.Ready()

	if w.org, err = srv.EnsureOrganization(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	if w.cluster, err = srv.EnsureLocalCluster(t.Context(), w.org.OrganizationID, "local", "Zone-A"); err != nil {
		t.Fatal(err)
	}
	w.admin = w.token(t, auth.RoleAdmin)
	w.user = w.token(t, auth.RoleUser)
	return w
}

func (w *world) token(t *testing.T, role auth.Role) auth.Secret {
	t.Helper()
	_, secret, err := w.Tokens().Create(t.Context(), auth.NewToken{OrganizationID: w.org.OrganizationID, UserID: "someone", Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// bearer adds the token to every call.
func bearer(secret auth.Secret) connect.ClientOption {
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+secret.Reveal())
			return next(ctx, req)
		}
	}))
}

func (w *world) runners(secret auth.Secret, options ...connect.ClientOption) sandboxv1connect.RunnerManagementServiceClient {
	return sandboxv1connect.NewRunnerManagementServiceClient(w.client, w.URL(), append(options, bearer(secret))...)
}
