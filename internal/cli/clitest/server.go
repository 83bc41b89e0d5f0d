// Package clitest is a server for the tests of the command line: it answers on
// a loopback port as the contract says, keeps sandboxes in memory and runs
// their commands on this machine. A call that it has no answer for fails the
// test.
package clitest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Token is the only one that the server accepts.
const Token = "test-token"

// T is the part of testing.TB that the server needs.
type T interface {
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Helper()
}

// Server is the fake. Its fields may be set before the first call.
type Server struct {
	// URL is the address, http://127.0.0.1:port.
	URL       string
	Sandboxes *Sandboxes
	Runners   *Runners
	Admin     *Admin

	mu    sync.Mutex
	calls []string
}

// Start serves until the test ends.
func Start(t T) *Server {
	t.Helper()
	server := &Server{Sandboxes: newSandboxes(), Runners: &Runners{}, Admin: newAdmin()}
	options := connect.WithInterceptors(&strict{t: t, server: server})
	mux := http.NewServeMux()
	mux.Handle(sandboxv1connect.NewSandboxServiceHandler(server.Sandboxes, options))
	mux.Handle(sandboxv1connect.NewRunnerManagementServiceHandler(server.Runners, options))
	mux.Handle(adminv1connect.NewClusterServiceHandler(server.Admin, options))
	mux.Handle(adminv1connect.NewTokenServiceHandler(server.Admin, options))
	mux.Handle(adminv1connect.NewAuditServiceHandler(server.Admin, options))
	mux.Handle(adminv1connect.NewImageServiceHandler(server.Admin, options))

	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen on loopback: %v", err)
	}
	server.URL = "http://" + listener.Addr().String()
	serving := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	serving.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serving.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		if err := serving.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
		<-done
		server.Sandboxes.wait()
	})
	return server
}

// Calls lists the procedures that were called, in order.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// strict checks the token and fails the test on calls without an answer.
type strict struct {
	t      T
	server *Server
}

func (s *strict) begin(procedure string, header http.Header) error {
	s.server.mu.Lock()
	s.server.calls = append(s.server.calls, procedure)
	s.server.mu.Unlock()
	if header.Get("Authorization") != "Bearer "+Token {
		return apierr.Connect(apierr.New(apierr.Unauthenticated, "the token is missing or not known; set COREWEAVE_API_TOKEN"))
	}
	return nil
}

func (s *strict) end(procedure string, err error) error {
	if connect.CodeOf(err) == connect.CodeUnimplemented && apierr.Info(err) == nil {
		s.t.Errorf("unexpected call of %s", procedure)
	}
	if err != nil {
		return apierr.Connect(err)
	}
	return nil
}

// WrapUnary is part of connect.Interceptor.
func (s *strict) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if err := s.begin(request.Spec().Procedure, request.Header()); err != nil {
			return nil, err
		}
		response, err := next(ctx, request)
		return response, s.end(request.Spec().Procedure, err)
	}
}

// WrapStreamingHandler is part of connect.Interceptor.
func (s *strict) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := s.begin(conn.Spec().Procedure, conn.RequestHeader()); err != nil {
			return err
		}
		return s.end(conn.Spec().Procedure, next(ctx, conn))
	}
}

// WrapStreamingClient is part of connect.Interceptor.
func (s *strict) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
