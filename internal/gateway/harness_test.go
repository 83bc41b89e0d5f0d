package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

const org = "org-1"

var runnerOne = gateway.RunnerIdentity{RunnerKey: gateway.RunnerKey{OrganizationID: org, RunnerID: "runner-1"}, Revision: 1}

// environment is a server with a gateway that can be replaced, over a store
// and declarations that stay.
type environment struct {
	store   *memoryStore
	runners *declared
	server  *httptest.Server
	gateway *gateway.Gateway
	clock   clock.WithTickerAndDelayedExecution
	ids     atomic.Int64
	// handler is the running gateway's.
	handler atomic.Pointer[http.Handler]
}

// newEnvironment declares runner-1, shared, with an empty policy.
func newEnvironment(t testing.TB) *environment {
	t.Helper()
	return newEnvironmentAt(t, clock.RealClock{})
}

func newEnvironmentAt(t testing.TB, at clock.WithTickerAndDelayedExecution) *environment {
	t.Helper()
	e := &environment{store: newMemoryStore(), runners: newDeclared(), clock: at}
	e.runners.declare(gateway.Runner{
		RunnerKey: runnerOne.RunnerKey, RunnerGroupID: "group-1", Shared: true,
		Policy: gateway.PolicySnapshot{Policy: &sandboxv1.Policy{}, ETag: "etag-1"},
	})
	e.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*e.handler.Load()).ServeHTTP(w, r)
	}))
	e.server.Config.Protocols = new(http.Protocols)
	e.server.Config.Protocols.SetHTTP1(true)
	e.server.Config.Protocols.SetUnencryptedHTTP2(true)
	e.boot()
	e.server.Start()
	t.Cleanup(func() {
		e.shutdown(t)
		e.server.Close()
	})
	return e
}

// boot starts a gateway that knows nothing but the store.
func (e *environment) boot() {
	e.gateway = gateway.New(gateway.Config{
		Store: e.store, Runners: e.runners, Clock: e.clock,
		IDs:    func() string { return fmt.Sprintf("sb-%06d", e.ids.Add(1)) },
		Logger: slog.New(slog.DiscardHandler),
	})
	options := connect.WithHandlerOptions(connect.WithInterceptors(errorsToWire{}), connect.WithReadMaxBytes(100<<20),
		// As the public port has it for streams.
		connect.WithCompressMinBytes(math.MaxInt))
	mux := http.NewServeMux()
	mux.Handle(sandboxv1connect.NewSandboxServiceHandler(e.gateway, options))
	mux.Handle(sandboxv1connect.NewDiscoveryServiceHandler(e.gateway, options))
	mux.Handle(adminv1connect.NewImageServiceHandler(e.gateway, options))
	mux.Handle(runnerv1connect.NewEnrollmentServiceHandler(e.gateway, options))
	mux.Handle(gateway.TunnelPath, e.gateway.TunnelHandler())
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if organization := r.Header.Get("Test-Organization"); organization != "" {
			r = r.WithContext(auth.WithPrincipal(r.Context(), auth.Principal{
				OrganizationID: organization, UserID: "user-1", Role: auth.RoleUser,
			}))
		}
		mux.ServeHTTP(w, r)
	})
	e.handler.Store(&handler)
	e.gateway.Start()
}

func (e *environment) shutdown(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.gateway.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// restart replaces the gateway; runners connect again.
func (e *environment) restart(t testing.TB) {
	t.Helper()
	e.shutdown(t)
	e.boot()
}

// errorsToWire is what the server's interceptor does.
type errorsToWire struct{}

func (errorsToWire) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, req)
		if err != nil {
			return nil, apierr.Connect(err)
		}
		return resp, nil
	}
}

func (errorsToWire) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (errorsToWire) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := next(ctx, conn); err != nil {
			return apierr.Connect(err)
		}
		return nil
	}
}

// clients are those of one organization.
type clients struct {
	sandboxv1connect.SandboxServiceClient
	discovery sandboxv1connect.DiscoveryServiceClient
	images    adminv1connect.ImageServiceClient
}

func (e *environment) clients(t testing.TB, organization string) clients {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: headers{transport, organization}}
	return clients{
		SandboxServiceClient: sandboxv1connect.NewSandboxServiceClient(client, e.server.URL, connect.WithGRPC()),
		discovery:            sandboxv1connect.NewDiscoveryServiceClient(client, e.server.URL),
		images:               adminv1connect.NewImageServiceClient(client, e.server.URL),
	}
}

type headers struct {
	http.RoundTripper
	organization string
}

func (h headers) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Test-Organization", h.organization)
	if req.Body != nil {
		// A cancelled stream is reset at once, as other clients do.
		context.AfterFunc(req.Context(), func() { _ = req.Body.Close() })
	}
	return h.RoundTripper.RoundTrip(req)
}

// ready is a gateway with one runner that is connected and healthy.
func ready(t testing.TB) (*environment, *host, clients) {
	t.Helper()
	h := newHost()
	e, c, _ := connected(t, h)
	return e, h, c
}

// connected is ready for a host of one's own, and a runner that kill ends.
func connected(t testing.TB, h *host) (e *environment, c clients, kill func()) {
	t.Helper()
	e = newEnvironment(t)
	_, kill = e.start(t, h, runnerOne)
	c = e.clients(t, org)
	e.awaitHealthy(t, c, runnerOne.RunnerID)
	return e, c, kill
}

func (e *environment) awaitHealthy(t testing.TB, c clients, runnerID string) {
	t.Helper()
	eventually(t, "the runner is healthy", func() bool {
		r, err := c.discovery.GetAvailableRunner(t.Context(), &sandboxv1.GetAvailableRunnerRequest{RunnerId: runnerID, OrganizationId: org})
		return err == nil && r.GetHealthy()
	})
}

// eventually polls for what happens on its own.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// spec is a small sandbox as the SDKs ask for it.
func spec(edits ...func(*sandboxv1.SandboxSpec)) *sandboxv1.SandboxSpec {
	resources := func() *sandboxv1.Resources { return &sandboxv1.Resources{Cpu: "500m", Memory: "512Mi"} }
	s := &sandboxv1.SandboxSpec{
		PrimaryContainer: "main",
		Containers: []*sandboxv1.Container{{
			Name: "main", Image: "python:3.11", Command: "/bin/sh", Args: []string{"-c", "sleep infinity"},
			ResourceRequirements: &sandboxv1.ResourceRequirements{Requests: resources(), Limits: resources()},
		}},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func create(t testing.TB, c clients, edits ...func(*sandboxv1.SandboxSpec)) *sandboxv1.Sandbox {
	t.Helper()
	sb, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec(edits...)}})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return sb
}

func get(t testing.TB, c clients, id string) *sandboxv1.Sandbox {
	t.Helper()
	sb, err := c.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return sb
}

func awaitState(t testing.TB, c clients, id string, want sandboxv1.State) *sandboxv1.Sandbox {
	t.Helper()
	var last *sandboxv1.Sandbox
	eventually(t, fmt.Sprintf("%s is %v", id, want), func() bool {
		last = get(t, c, id)
		return last.GetStatus().GetState() == want
	})
	return last
}

func wantReason(t testing.TB, err error, want apierr.Reason) {
	t.Helper()
	if got := apierr.ReasonOf(err); got != want {
		t.Errorf("reason = %q (%v), want %s", got, err, want)
	}
	if info := apierr.Info(err); info != nil && info.GetDomain() != "cwsandbox.com" {
		t.Errorf("domain = %q", info.GetDomain())
	}
}

// wantFields wants an invalid request with violations of these fields.
func wantFields(t testing.TB, err error, want ...string) {
	t.Helper()
	wantReason(t, err, apierr.InvalidRequest)
	var fields []string
	for _, v := range apierr.BadRequest(err).GetFieldViolations() {
		fields = append(fields, v.GetField())
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields differ (-want +got):\n%s", diff)
	}
}
