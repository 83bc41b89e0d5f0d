package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// fakeGateway takes one runner's enrolment, heartbeats and tunnels.
type fakeGateway struct {
	runnerv1connect.UnimplementedEnrollmentServiceHandler
	server *httptest.Server

	mu         sync.Mutex
	token      string
	enrolments int
	// valid is the newest credential.
	valid      string
	heartbeats chan *runnerv1.Capacity
	clients    chan runnerv1connect.RunnerServiceClient
	serving    sync.WaitGroup
	closing    chan struct{}
}

func newFakeGateway(t *testing.T) *fakeGateway {
	t.Helper()
	g := &fakeGateway{
		token:      "token",
		heartbeats: make(chan *runnerv1.Capacity, 1),
		clients:    make(chan runnerv1connect.RunnerServiceClient, 64),
		closing:    make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.Handle(runnerv1connect.NewEnrollmentServiceHandler(g))
	mux.Handle(tunnel.Path, tunnel.Handler(tunnel.HandlerOptions[string]{
		Authenticate: func(_ context.Context, credential string) (string, error) {
			if !g.known(credential) {
				return "", fmt.Errorf("look up: %w", tunnel.ErrUnauthorized)
			}
			return credential, nil
		},
		Serve: func(_ context.Context, _ string, conn *tunnel.Conn) {
			g.serving.Add(1)
			defer g.serving.Done()
			client := runnerv1connect.NewRunnerServiceClient(&http.Client{Transport: conn}, "http://runner", connect.WithGRPC())
			g.clients <- client
			select {
			case <-conn.Done():
			case <-g.closing:
			}
		},
		Logger: slog.New(slog.DiscardHandler),
	}))
	g.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		close(g.closing)
		g.serving.Wait()
		g.server.Close()
	})
	return g
}

func (g *fakeGateway) known(credential string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return credential != "" && credential == g.valid
}

// revoke makes the newest credential unknown.
func (g *fakeGateway) revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.valid = ""
}

func (g *fakeGateway) enrolled() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.enrolments
}

func (g *fakeGateway) Enroll(_ context.Context, request *runnerv1.EnrollRequest) (*runnerv1.EnrollResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if request.GetEnrollmentToken() != g.token {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("unknown token"))
	}
	g.enrolments++
	g.valid = fmt.Sprintf("credential-%d", g.enrolments)
	return &runnerv1.EnrollResponse{Credential: g.valid, RunnerId: "runner-1", OrganizationId: "org-1", Revision: 1}, nil
}

func (g *fakeGateway) Heartbeat(ctx context.Context, request *runnerv1.HeartbeatRequest) (*runnerv1.HeartbeatResponse, error) {
	call, _ := connect.CallInfoForHandlerContext(ctx)
	credential, _ := strings.CutPrefix(call.RequestHeader().Get("Authorization"), "Bearer ")
	if !g.known(credential) {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("unknown credential"))
	}
	select {
	case g.heartbeats <- request.GetCapacity():
	default:
	}
	return &runnerv1.HeartbeatResponse{}, nil
}

// client waits for the next connection.
func (g *fakeGateway) client(t *testing.T) runnerv1connect.RunnerServiceClient {
	t.Helper()
	select {
	case client := <-g.clients:
		return client
	case <-time.After(patience):
		t.Fatal("no runner has connected")
		return nil
	}
}
