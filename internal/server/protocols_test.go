package server

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// largeFile is more than what gRPC libraries take by default.
const largeFile = 5 << 20

func TestEveryProtocolIsSpokenOnTheOnePort(t *testing.T) {
	w, _ := talk(t, nil)
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			client := w.sandboxes(http2(t, &http.Transport{}), w.user, options...)
			checkConversation(t, client)
		})
	}
}

// checkConversation makes calls of every kind.
func checkConversation(t *testing.T, client sandboxv1connect.SandboxServiceClient) {
	t.Helper()
	sandbox, err := client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "sb-1"})
	if err != nil || sandbox.GetSandboxId() != "sb-1" {
		t.Errorf("unary: %v, %v", sandbox, err)
	}
	_, err = client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: missing})
	if connect.CodeOf(err) != connect.CodeNotFound || apierr.ReasonOf(err) != apierr.SandboxNotFound || apierr.Info(err).GetDomain() != apierr.Domain {
		t.Errorf("error: %v (%s)", err, apierr.ReasonOf(err))
	}
	if _, err := client.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: "sb-1", Path: "/f", Content: make([]byte, largeFile)}); err != nil {
		t.Errorf("a large message: %v", err)
	}
	for _, id := range []string{"sb-1", missing} {
		logs, err := client.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		read, err := lines(logs)
		if diff := cmp.Diff([]string{"one", "two"}, read); diff != "" {
			t.Errorf("server stream of %s (-want +got):\n%s", id, diff)
		}
		if want := map[string]apierr.Reason{missing: apierr.SandboxNotFound}[id]; apierr.ReasonOf(err) != want {
			t.Errorf("server stream of %s ended with %v; want reason %q after its messages", id, err, want)
		}
	}
	exec, err := client.StreamExec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Each answer before the next question: both directions at once.
	for _, text := range []string{"a", "b", "c"} {
		if err := exec.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: []byte(text)}}); err != nil {
			t.Fatal(err)
		}
		answer, err := exec.Receive()
		if err != nil || string(answer.GetOutput().GetData()) != text {
			t.Fatalf("bidirectional stream: %v, %v; want %q", answer, err, text)
		}
	}
	if err := exec.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if answer, err := exec.Receive(); err != nil || answer.GetExit() == nil {
		t.Errorf("after the half-close: %v, %v; want the exit", answer, err)
	}
	if _, err := exec.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if err := exec.CloseResponse(); err != nil {
		t.Error(err)
	}
}

func TestStrangersAreRefusedInEveryProtocol(t *testing.T) {
	w, _ := talk(t, nil)
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			client := w.sandboxes(http2(t, &http.Transport{}), "CW-SECRET-aaaa-bbbb", options...)
			_, err := client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "sb-1"})
			if connect.CodeOf(err) != connect.CodeUnauthenticated || apierr.ReasonOf(err) != apierr.Unauthenticated {
				t.Errorf("unary: %v", err)
			}
			logs, err := client.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: "sb-1"})
			if err == nil {
				_, err = lines(logs)
			}
			if connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("stream: %v", err)
			}
		})
	}
}

func TestAPanicEndsOneCallAndNotTheServer(t *testing.T) {
	w, _ := talk(t, nil)
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			client := w.sandboxes(http2(t, &http.Transport{}), w.user, options...)
			other, err := client.StreamExec(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: panics})
			if connect.CodeOf(err) != connect.CodeInternal || apierr.ReasonOf(err) != apierr.Internal {
				t.Errorf("unary: %v (%s)", err, apierr.ReasonOf(err))
			}
			logs, err := client.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: panics})
			if err != nil {
				t.Fatal(err)
			}
			if read, err := lines(logs); len(read) != 2 || connect.CodeOf(err) != connect.CodeInternal || apierr.ReasonOf(err) != apierr.Internal {
				t.Errorf("stream: %q, then %v (%s)", read, err, apierr.ReasonOf(err))
			}
			// Another call of the same connection has noticed nothing.
			if err := other.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: []byte("x")}}); err != nil {
				t.Fatal(err)
			}
			if answer, err := other.Receive(); err != nil || string(answer.GetOutput().GetData()) != "x" {
				t.Errorf("another stream: %v, %v", answer, err)
			}
			if err := errors.Join(other.CloseRequest(), other.CloseResponse()); err != nil {
				t.Error(err)
			}
		})
	}
	for name, path := range map[string]string{"REST": "/v1/sandboxes/" + panics, "plain HTTP": gateway.TunnelPath} {
		t.Run(name, func(t *testing.T) {
			status, body := w.rest(t, w.user, http.MethodGet, path, "")
			if status != http.StatusInternalServerError || body["code"] != float64(connect.CodeInternal) {
				t.Errorf("%d %v", status, body)
			}
		})
	}
}
