package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

func decodeBody(t *testing.T, response *http.Response) (decoded map[string]any) {
	t.Helper()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &decoded); err != nil {
		t.Fatalf("%d %q, which is not JSON", response.StatusCode, data)
	}
	return decoded
}

// connectReason is the reason in an error as Connect writes it.
func connectReason(body map[string]any) string {
	details, _ := body["details"].([]any)
	for _, detail := range details {
		detail, _ := detail.(map[string]any)
		debug, _ := detail["debug"].(map[string]any)
		if debug["domain"] == apierr.Domain {
			reason, _ := debug["reason"].(string)
			return reason
		}
	}
	return ""
}

func TestConnectJSONThatCannotBeReadIsRefusedWithAReason(t *testing.T) {
	w := start(t, nil)
	for name, body := range map[string]string{
		"no JSON":          `{`,
		"nothing":          ``,
		"an unknown field": `{"nothing":1}`,
		"an unknown value": `{"managedRunner":{"spec":{"releaseChannel":"NIGHTLY"}}}`,
		"a bad number":     `{"managedRunner":{"policy":{"constraints":{"resources":{"maxGpuCount":"many"}}}}}`,
	} {
		status, answer := w.post(t, w.admin, sandboxv1connect.RunnerManagementServiceCreateManagedRunnerProcedure, "application/json", body)
		if status != http.StatusBadRequest || answer["code"] != "invalid_argument" || connectReason(answer) != string(apierr.InvalidRequest) {
			t.Errorf("%s: %d %v", name, status, answer)
		}
	}
}

func TestAMethodThatIsNotThereIsUnimplementedInEveryProtocol(t *testing.T) {
	w := start(t, nil)
	for _, procedure := range []string{
		"/coreweave.sandbox.v1.SandboxService/Nothing", "/coreweave.sandbox.v1.NoService/Nothing",
		"/sandbar.runner.v1.EnrollmentService/Nothing", "/grpc.health.v1.Health/Nothing",
	} {
		for name, options := range protocols {
			client := connect.NewClient[emptypb.Empty, emptypb.Empty](http2(t, &http.Transport{}), w.URL()+procedure, append(options, bearer(w.admin))...)
			_, err := client.CallUnary(t.Context(), connect.NewRequest(&emptypb.Empty{}))
			if connect.CodeOf(err) != connect.CodeUnimplemented || apierr.ReasonOf(err) != apierr.MethodNotFound || !strings.Contains(err.Error(), procedure) {
				t.Errorf("%s, %s: %v (%s)", name, procedure, err, apierr.ReasonOf(err))
			}
			streams := connect.NewClient[emptypb.Empty, emptypb.Empty](http2(t, &http.Transport{}), w.URL()+procedure, append(options, connect.WithInterceptors(credentials(w.admin)))...)
			stream, err := streams.CallServerStream(t.Context(), connect.NewRequest(&emptypb.Empty{}))
			if err == nil {
				for stream.Receive() {
					t.Error("a message came")
				}
				err = stream.Err()
				_ = stream.Close()
			}
			if connect.CodeOf(err) != connect.CodeUnimplemented || apierr.ReasonOf(err) != apierr.MethodNotFound {
				t.Errorf("%s, %s, as a stream: %v (%s)", name, procedure, err, apierr.ReasonOf(err))
			}
		}
	}
}

// garbled sends proto that no message is.
type garbled struct{}

func (garbled) Name() string                { return "proto" }
func (garbled) Marshal(any) ([]byte, error) { return []byte{0xff, 0xff, 0xff}, nil }

func (garbled) Unmarshal(data []byte, message any) error {
	known, err := protobuf(message)
	if err != nil {
		return err
	}
	return proto.Unmarshal(data, known)
}

func TestAMessageThatCannotBeReadIsRefusedWithAReasonInEveryProtocol(t *testing.T) {
	w, _ := talk(t, nil)
	for name, options := range protocols {
		if name == "Connect, JSON" {
			continue // has its own test
		}
		client := w.sandboxes(http2(t, &http.Transport{}), w.user, append(options, connect.WithCodec(garbled{}))...)
		_, err := client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{})
		if connect.CodeOf(err) != connect.CodeInvalidArgument || apierr.ReasonOf(err) != apierr.InvalidRequest {
			t.Errorf("%s: %v (%q)", name, err, apierr.ReasonOf(err))
		}
		logs, err := client.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{})
		if err == nil {
			_, err = lines(logs)
		}
		if connect.CodeOf(err) != connect.CodeInvalidArgument || apierr.ReasonOf(err) != apierr.InvalidRequest {
			t.Errorf("%s, stream: %v (%q)", name, err, apierr.ReasonOf(err))
		}
	}
}

func TestACompressionThatIsNotKnownIsRefusedWithAReason(t *testing.T) {
	w, _ := talk(t, nil)
	response, body := w.send(t, http.MethodPost, sandboxv1connect.SandboxServiceGetSandboxProcedure, bytes.NewReader([]byte("x")),
		map[string]string{"Content-Type": "application/json", "Content-Encoding": "br"})
	if response.StatusCode != http.StatusNotImplemented || connectReason(body) != string(apierr.NotImplemented) {
		t.Errorf("Connect: %d %v", response.StatusCode, body)
	}
	response, body = w.send(t, http.MethodPost, "/v1/sandboxes", bytes.NewReader([]byte("x")),
		map[string]string{"Content-Type": "application/json", "Content-Encoding": "br"})
	if p := problemOf(t, body); response.StatusCode != http.StatusUnsupportedMediaType || p.reason != string(apierr.UnsupportedMediaType) {
		t.Errorf("REST: %d %v", response.StatusCode, body)
	}
}
