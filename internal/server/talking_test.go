package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
)

// Ids of sandboxes that answer in a way of their own.
const (
	missing = "missing" // is not there
	panics  = "panics"  // makes the handler panic
	slow    = "slow"    // answers when it is let go
	endless = "endless" // its logs go on until the call ends
)

// talkingGateway answers calls on sandboxes, which need not be made before.
type talkingGateway struct {
	*fakeGateway
	// entered receives when a slow call has begun; letGo ends it when closed.
	entered, letGo chan struct{}
}

func (g *talkingGateway) GetSandbox(_ context.Context, req *sandboxv1.GetSandboxRequest) (*sandboxv1.Sandbox, error) {
	switch req.GetSandboxId() {
	case missing:
		return nil, apierr.New(apierr.SandboxNotFound, "no sandbox %q", missing)
	case panics:
		panic("the handler is broken")
	case slow:
		g.entered <- struct{}{}
		<-g.letGo
	}
	return &sandboxv1.Sandbox{SandboxId: req.GetSandboxId()}, nil
}

func (g *talkingGateway) WriteFile(_ context.Context, req *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	if len(req.GetContent()) != largeFile {
		return nil, errors.New("a part is missing")
	}
	return &sandboxv1.WriteFileResponse{}, nil
}

// StreamLogs sends two entries, and then does what its sandbox is for.
func (g *talkingGateway) StreamLogs(ctx context.Context, req *sandboxv1.StreamLogsRequest, stream *connect.ServerStream[sandboxv1.LogEntry]) error {
	for _, line := range []string{"one", "two"} {
		if err := stream.Send(&sandboxv1.LogEntry{Data: []byte(line)}); err != nil {
			return err
		}
	}
	switch req.GetSandboxId() {
	case missing:
		return apierr.New(apierr.SandboxNotFound, "no sandbox %q", missing)
	case panics:
		panic("the handler is broken")
	case endless:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// StreamExec is a cat: what comes in goes out at once. Like the gateway it
// watches its context beside the caller, whose silence may be long.
func (g *talkingGateway) StreamExec(ctx context.Context, stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) error {
	incoming, failed := make(chan *sandboxv1.ExecStreamRequest), make(chan error, 1)
	go func() {
		// Reading fails when the call is over.
		for {
			request, err := stream.Receive()
			if err != nil {
				failed <- err
				return
			}
			select {
			case incoming <- request:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			if !errors.Is(err, io.EOF) {
				return err
			}
			return stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Exit{Exit: &sandboxv1.ExecStreamExit{}}})
		case request := <-incoming:
			if err := stream.Send(&sandboxv1.ExecStreamResponse{
				Message: &sandboxv1.ExecStreamResponse_Output{Output: &sandboxv1.ExecStreamOutput{Data: request.GetStdin()}},
			}); err != nil {
				return err
			}
		}
	}
}

// TunnelHandler is a handler of plain HTTP that is broken.
func (g *talkingGateway) TunnelHandler() http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("the handler is broken") })
}

// talk starts a server whose gateway talks.
func talk(t *testing.T, change func(*Config)) (*world, *talkingGateway) {
	t.Helper()
	g := &talkingGateway{fakeGateway: &fakeGateway{}, entered: make(chan struct{}, 1), letGo: make(chan struct{})}
	return startWith(t, change, func(Config, Store, *fleet.Registry) Gateway { return g }), g
}

// protocols are what one port speaks.
var protocols = map[string][]connect.ClientOption{
	"Connect":       nil,
	"Connect, JSON": {connect.WithProtoJSON()},
	"gRPC":          {connect.WithGRPC()},
	"gRPC, gzip":    {connect.WithGRPC(), connect.WithSendGzip()},
	"gRPC-Web":      {connect.WithGRPCWeb()},
}

// http2 is a client of HTTP/2 alone, without TLS when transport has none.
func http2(t *testing.T, transport *http.Transport) *http.Client {
	t.Helper()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (w *world) sandboxes(client *http.Client, secret auth.Secret, options ...connect.ClientOption) sandboxv1connect.SandboxServiceClient {
	return sandboxv1connect.NewSandboxServiceClient(client, w.URL(), append(options, connect.WithInterceptors(credentials(secret)))...)
}

// credentials adds the token to every call, streams included.
type credentials auth.Secret

func (c credentials) header(header http.Header) {
	header.Set("Authorization", "Bearer "+auth.Secret(c).Reveal())
}

func (c credentials) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c.header(req.Header())
		return next(ctx, req)
	}
}

func (c credentials) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.header(conn.RequestHeader())
		return conn
	}
}

func (c credentials) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// lines reads a log to its end.
func lines(stream *connect.ServerStreamForClient[sandboxv1.LogEntry]) (read []string, err error) {
	for stream.Receive() {
		read = append(read, string(stream.Msg().GetData()))
	}
	// What ended the stream is what counts.
	_ = stream.Close()
	return read, stream.Err()
}
