package gateway_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
)

// direct serves StreamExec without a gateway or a tunnel: the floor.
type direct struct {
	sandboxv1connect.UnimplementedSandboxServiceHandler
	process *process
}

func (d direct) StreamExec(ctx context.Context, stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) error {
	return d.process.StreamExec(ctx, stream)
}

// BenchmarkExec compares an exec through gateway and tunnel with the same call
// made to the runner directly: one that echoes a word, and one that writes
// 32 MiB in frames of different sizes: as programs write them, and as much as a
// pipe holds.
func BenchmarkExec(b *testing.B) {
	_, _, relayed := ready(b)
	id := create(b, relayed).GetSandboxId()

	mux := http.NewServeMux()
	mux.Handle(sandboxv1connect.NewSandboxServiceHandler(direct{process: &process{host: newHost()}}, connect.WithCompressMinBytes(math.MaxInt)))
	floor := &environment{server: httptest.NewUnstartedServer(mux)}
	floor.server.Config.Protocols = new(http.Protocols)
	floor.server.Config.Protocols.SetUnencryptedHTTP2(true)
	floor.server.Start()
	b.Cleanup(floor.server.Close)

	for _, work := range []struct {
		name    string
		command []string
		bytes   int64
	}{
		{"echo", []string{"echo", "hello"}, 0},
		{"4KiB", []string{"bulk", "8192", "4096"}, 32 << 20},
		{"64KiB", []string{"bulk", "512", "65536"}, 32 << 20},
	} {
		for _, way := range []struct {
			name string
			clients
		}{{"direct", floor.clients(b, org)}, {"relayed", relayed}} {
			b.Run(work.name+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(work.bytes)
				for b.Loop() {
					execToEnd(b, way.clients, id, work.command...)
				}
			})
		}
	}
}

func execToEnd(b *testing.B, c clients, id string, command ...string) {
	stream := startExec(b.Context(), b, c, id, command...)
	if err := stream.CloseRequest(); err != nil {
		b.Fatal(err)
	}
	for receive(b, stream).GetExit() == nil {
	}
	_ = stream.CloseResponse()
}

// BenchmarkCreate is a sandbox's life with a runner that takes no time.
func BenchmarkCreate(b *testing.B) {
	_, _, c := ready(b)
	b.ReportAllocs()
	for b.Loop() {
		id := create(b, c).GetSandboxId()
		if _, err := c.DeleteSandbox(b.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id}); err != nil {
			b.Fatal(err)
		}
	}
}
