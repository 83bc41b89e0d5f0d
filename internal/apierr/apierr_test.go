package apierr

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/emptypb"
)

func TestEveryReasonHasARow(t *testing.T) {
	declared := declaredReasons(t)
	for name, reason := range declared {
		if _, ok := table[reason]; !ok {
			t.Errorf("%s (%s) has no row in the table", name, reason)
		}
		if !strings.HasPrefix(string(reason), "CWSANDBOX_") {
			t.Errorf("%s (%s) does not follow the contract's form", name, reason)
		}
	}
	if len(declared) != len(table) {
		t.Errorf("%d reasons are declared, the table has %d rows", len(declared), len(table))
	}
}

// declaredReasons reads the constants out of the source, so that a new one
// cannot be forgotten.
func declaredReasons(t *testing.T) map[string]Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Reason{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Type == nil {
			return true
		}
		if ident, ok := spec.Type.(*ast.Ident); ok && ident.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found[spec.Names[0].Name] = Reason(value)
		}
		return true
	})
	return found
}

// overTheWire serves err from a handler and returns what a client gets.
func overTheWire(t *testing.T, err error, options ...connect.ClientOption) error {
	t.Helper()
	const procedure = "/test.v1.Service/Method"
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandlerSimple(procedure,
		func(context.Context, *emptypb.Empty) (*emptypb.Empty, error) { return nil, Connect(err) }))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client := connect.NewClient[emptypb.Empty, emptypb.Empty](server.Client(), server.URL+procedure, options...)
	_, received := client.CallUnary(t.Context(), connect.NewRequest(&emptypb.Empty{}))
	return received
}

func TestAnErrorKeepsItsReasonAndDetailsOverTheWire(t *testing.T) {
	sent := Invalid(PolicyViolation, []Violation{
		{Field: "spec.a", Description: "is 3, must be at most 2", Reason: "MAX"},
		{Field: "spec.b", Description: "is missing"},
	})
	for _, protocol := range []struct {
		name    string
		options []connect.ClientOption
	}{{"connect", nil}, {"connect with JSON", []connect.ClientOption{connect.WithProtoJSON()}}, {"gRPC-Web", []connect.ClientOption{connect.WithGRPCWeb()}}} {
		t.Run(protocol.name, func(t *testing.T) {
			got := overTheWire(t, fmt.Errorf("create: %w", sent), protocol.options...)
			if connect.CodeOf(got) != connect.CodeInvalidArgument || ReasonOf(got) != PolicyViolation {
				t.Errorf("code %v, reason %q", connect.CodeOf(got), ReasonOf(got))
			}
			want := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "spec.a", Description: "is 3, must be at most 2", Reason: "MAX"},
				{Field: "spec.b", Description: "is missing"},
			}}
			if diff := cmp.Diff(want, BadRequest(got), protocmp.Transform()); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
			if !strings.Contains(got.Error(), "spec.a: is 3, must be at most 2; spec.b: is missing") {
				t.Errorf("the message does not name every violation: %v", got)
			}
		})
	}
}

func TestMetadataAndRetryDelayTravel(t *testing.T) {
	got := overTheWire(t, New(FileTooLarge, "too large").With("size_bytes", "7").RetryAfter(3*time.Second))
	info := Info(got)
	if info.GetDomain() != Domain || info.GetMetadata()["size_bytes"] != "7" {
		t.Errorf("ErrorInfo is %v", info)
	}
	retry := find(got, func(*errdetails.RetryInfo) bool { return true })
	if retry.GetRetryDelay().AsDuration() != 3*time.Second {
		t.Errorf("RetryInfo is %v", retry)
	}
}

func TestTheCauseStaysOnTheServer(t *testing.T) {
	for name, err := range map[string]error{
		"of an error with a reason": New(Internal, "cannot store the runner").Because(errors.New("secret detail")),
		"of an unknown error":       errors.New("secret detail"),
	} {
		t.Run(name, func(t *testing.T) {
			if got := overTheWire(t, err); strings.Contains(got.Error(), "secret") || ReasonOf(got) != Internal {
				t.Errorf("the client sees %v (reason %s)", got, ReasonOf(got))
			}
			if !errors.Is(Connect(err), err) {
				t.Error("the cause is lost on the server too")
			}
		})
	}
}

func TestConnectPassesWhatIsReadyAndMapsContexts(t *testing.T) {
	ready := connect.NewError(connect.CodeAborted, io.EOF)
	if Connect(ready) != ready {
		t.Error("an error that is ready to send was changed")
	}
	if code := connect.CodeOf(Connect(fmt.Errorf("wait: %w", context.Canceled))); code != connect.CodeCanceled {
		t.Errorf("a cancelled context is %v", code)
	}
	if code := connect.CodeOf(Connect(context.DeadlineExceeded)); code != connect.CodeDeadlineExceeded {
		t.Errorf("a passed deadline is %v", code)
	}
	if Connect(nil) != nil {
		t.Error("no error became one")
	}
}

func TestInvalidOfNothingIsNoError(t *testing.T) {
	if err := Invalid(InvalidRequest, nil); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, ExitOK},
		{errors.New("anything"), ExitFailure},
		{New(PolicyViolation, "refused"), ExitRefused},
		{overTheWire(t, New(SandboxNotFound, "none")), ExitNotFound},
		{connect.NewError(connect.CodeUnavailable, io.EOF), ExitUnavailable},
	} {
		if got := ExitCode(test.err); got != test.want {
			t.Errorf("ExitCode(%v) = %d, want %d", test.err, got, test.want)
		}
	}
}

func TestAForeignDomainIsNotOurs(t *testing.T) {
	foreign := connect.NewError(connect.CodeNotFound, io.EOF)
	detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Domain: "example.com", Reason: string(SandboxNotFound)})
	if err != nil {
		t.Fatal(err)
	}
	foreign.AddDetail(detail)
	if reason := ReasonOf(foreign); reason != "" {
		t.Errorf("reason %s was taken from another domain", reason)
	}
}
