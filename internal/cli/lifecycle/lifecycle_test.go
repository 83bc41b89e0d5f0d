package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/cli/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	creating    = sandboxv1.State_STATE_CREATING
	running     = sandboxv1.State_STATE_RUNNING
	paused      = sandboxv1.State_STATE_PAUSED
	terminating = sandboxv1.State_STATE_TERMINATING
	completed   = sandboxv1.State_STATE_COMPLETED
	failed      = sandboxv1.State_STATE_FAILED
	terminated  = sandboxv1.State_STATE_TERMINATED
)

func sandbox(state sandboxv1.State) *sandboxv1.Sandbox {
	return &sandboxv1.Sandbox{SandboxId: "sandbox-1", Status: &sandboxv1.SandboxStatus{State: state}}
}

// api answers each look with the next state, and the last one ever after.
// Calls that it has no answer for panic.
type api struct {
	sandboxv1connect.SandboxServiceClient

	looks []sandboxv1.State
	// lookError, when not nil, is the answer to a look after all states.
	lookError error
	// creates are the answers to creations in turn; nil is a success.
	creates    []error
	requestIDs []string
	deletion   *sandboxv1.DeleteSandboxResponse
	deleted    *sandboxv1.DeleteSandboxRequest
	looked     int
}

func (a *api) CreateSandbox(_ context.Context, request *sandboxv1.CreateSandboxRequest) (*sandboxv1.Sandbox, error) {
	a.requestIDs = append(a.requestIDs, request.GetRequestId())
	if err := a.creates[len(a.requestIDs)-1]; err != nil {
		return nil, err
	}
	return sandbox(creating), nil
}

func (a *api) GetSandbox(ctx context.Context, _ *sandboxv1.GetSandboxRequest) (*sandboxv1.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.looked++
	if a.looked > len(a.looks) && a.lookError != nil {
		return nil, a.lookError
	}
	return sandbox(a.looks[min(a.looked, len(a.looks))-1]), nil
}

func (a *api) DeleteSandbox(_ context.Context, request *sandboxv1.DeleteSandboxRequest) (*sandboxv1.DeleteSandboxResponse, error) {
	a.deleted = request
	return a.deletion, nil
}

// pauses records how long was waited, without waiting.
type pauses struct{ all []time.Duration }

func (p *pauses) wait(ctx context.Context, d time.Duration) error {
	p.all = append(p.all, d)
	return ctx.Err()
}

func sandboxes(a *api) (lifecycle.Sandboxes, *pauses) {
	p := &pauses{}
	return lifecycle.Sandboxes{API: a, Wait: p.wait}, p
}

func TestASandboxIsWaitedForUntilItCanBeUsedOrNeverWill(t *testing.T) {
	for name, c := range map[string]struct {
		looks []sandboxv1.State
		ends  string
	}{
		"it comes up":             {[]sandboxv1.State{creating, creating, running}, ""},
		"it is paused":            {[]sandboxv1.State{paused}, ""},
		"it cannot be started":    {[]sandboxv1.State{creating, failed}, "sandbox sandbox-1 is FAILED"},
		"it has completed":        {[]sandboxv1.State{completed}, "sandbox sandbox-1 is COMPLETED"},
		"it is deleted meanwhile": {[]sandboxv1.State{creating, terminating}, "sandbox sandbox-1 is TERMINATING"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{looks: c.looks}
			s, _ := sandboxes(a)
			var seen []sandboxv1.State
			got, err := s.Running(t.Context(), sandbox(creating), func(status *sandboxv1.SandboxStatus) { seen = append(seen, status.GetState()) })
			if want := append([]sandboxv1.State{creating}, c.looks...); !slices.Equal(seen, want) {
				t.Errorf("shown were %v, want %v", seen, want)
			}
			var ended *lifecycle.EndedError
			switch {
			case c.ends == "" && (err != nil || got.GetStatus().GetState() != c.looks[len(c.looks)-1]):
				t.Errorf("Running = %v, %v", got, err)
			case c.ends != "" && (!errors.As(err, &ended) || err.Error() != c.ends):
				t.Errorf("Running = %v, want %q", err, c.ends)
			}
		})
	}
}

func TestLooksBecomeRarer(t *testing.T) {
	a := &api{looks: append(slices.Repeat([]sandboxv1.State{creating}, 30), running)}
	s, waited := sandboxes(a)
	if _, err := s.Running(t.Context(), sandbox(creating), nil); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(waited.all) || waited.all[0] > 20*time.Millisecond || waited.all[len(waited.all)-1] != time.Second {
		t.Errorf("the pauses are %v", waited.all)
	}
}

func TestWaitingEndsWithItsContextAndWithTheServersErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := sandboxes(&api{looks: []sandboxv1.State{creating}})
	_, err := s.Running(ctx, sandbox(creating), func(*sandboxv1.SandboxStatus) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Running = %v, want a cancelled wait", err)
	}
	s, _ = sandboxes(&api{lookError: apierr.New(apierr.SandboxNotFound, "there is no sandbox")})
	if _, err := s.Gone(t.Context(), sandbox(terminating)); apierr.ReasonOf(err) != apierr.SandboxNotFound {
		t.Errorf("Gone = %v", err)
	}
}

func TestACreationWhoseAnswerGotLostIsAskedAgainUnderTheSameID(t *testing.T) {
	lost := connect.NewError(connect.CodeUnavailable, errors.New("connection reset"))
	refused := apierr.New(apierr.RunnerUnavailable, "no runner is connected")
	for name, c := range map[string]struct {
		answers []error
		asked   int
		code    connect.Code
	}{
		"at once":                  {[]error{nil}, 1, 0},
		"after two lost answers":   {[]error{lost, lost, nil}, 3, 0},
		"never":                    {[]error{lost, lost, lost, lost}, 4, connect.CodeUnavailable},
		"refused by the server":    {[]error{apierr.Connect(refused)}, 1, connect.CodeUnavailable},
		"makes no sense":           {[]error{connect.NewError(connect.CodeInvalidArgument, nil)}, 1, connect.CodeInvalidArgument},
		"refused after a lost one": {[]error{lost, apierr.Connect(refused)}, 2, connect.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{creates: c.answers}
			s, _ := sandboxes(a)
			_, err := s.Create(t.Context(), &sandboxv1.SandboxSpec{})
			if c.code == 0 && err != nil || c.code != 0 && connect.CodeOf(err) != c.code {
				t.Errorf("Create = %v", err)
			}
			if len(a.requestIDs) != c.asked || len(slices.Compact(slices.Clone(a.requestIDs))) != 1 || a.requestIDs[0] == "" {
				t.Errorf("asked under the ids %q, want one id %d times", a.requestIDs, c.asked)
			}
		})
	}
}

func TestARemovalWaitsForTheEndAndIsFineWithNothing(t *testing.T) {
	for name, c := range map[string]struct {
		deletion *sandboxv1.DeleteSandboxResponse
		looks    []sandboxv1.State
		err      error
		looked   int
	}{
		"it ends":              {&sandboxv1.DeleteSandboxResponse{Sandbox: sandbox(terminating)}, []sandboxv1.State{terminating, terminated}, nil, 2},
		"it had ended":         {&sandboxv1.DeleteSandboxResponse{Sandbox: sandbox(completed)}, nil, nil, 0},
		"it was not there":     {&sandboxv1.DeleteSandboxResponse{}, nil, nil, 0},
		"it is forgotten soon": {&sandboxv1.DeleteSandboxResponse{Sandbox: sandbox(terminating)}, nil, apierr.Connect(apierr.New(apierr.SandboxNotFound, "none")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{deletion: c.deletion, looks: c.looks, lookError: c.err}
			s, _ := sandboxes(a)
			if err := s.Remove(t.Context(), "sandbox-1", 7); err != nil {
				t.Errorf("Remove = %v", err)
			}
			want := &sandboxv1.DeleteSandboxRequest{SandboxId: "sandbox-1", GracePeriodSeconds: 7, AllowMissing: true}
			if !proto.Equal(a.deleted, want) || a.looked != c.looked {
				t.Errorf("asked for %v with %d looks, want %v with %d", a.deleted, a.looked, want, c.looked)
			}
		})
	}
}

func TestAnEndedSandboxSaysHow(t *testing.T) {
	ended := sandbox(failed)
	ended.Status.ExitCode, ended.Status.StateReason = proto.Int32(137), "OOM killed"
	const want = "sandbox sandbox-1 is FAILED, its main process ended with code 137: OOM killed"
	if got := (&lifecycle.EndedError{Sandbox: ended}).Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheEndOfASandboxUnderACommandIsWaitedForAShortTime(t *testing.T) {
	for name, c := range map[string]struct {
		looks  []sandboxv1.State
		err    error
		last   sandboxv1.State
		looked int
	}{
		"it has ended":           {[]sandboxv1.State{terminated}, nil, terminated, 1},
		"it ends a little later": {[]sandboxv1.State{running, terminating, terminated}, nil, terminated, 3},
		"it goes on":             {[]sandboxv1.State{running}, nil, running, 20},
		"it takes its time":      {[]sandboxv1.State{running, terminating}, nil, terminating, 20},
		"it is forgotten":        {[]sandboxv1.State{terminating}, errors.New("gone"), terminating, 2},
		"nobody answers":         {nil, errors.New("down"), 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{looks: c.looks, lookError: c.err}
			s, waited := sandboxes(a)
			if got := s.Ending(t.Context(), "sandbox-1").GetStatus().GetState(); got != c.last || a.looked != c.looked {
				t.Errorf("last seen is %s after %d looks, want %s after %d", got, a.looked, c.last, c.looked)
			}
			var total time.Duration
			for _, pause := range waited.all {
				total += pause
			}
			if total > 2*time.Second {
				t.Errorf("waited for %s", total)
			}
		})
	}
}

func TestOnlyAnEndOfTheSandboxIsExplained(t *testing.T) {
	at := func(seconds int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: 1000 + seconds} }
	for name, c := range map[string]struct {
		sandbox *sandboxv1.Sandbox
		says    string
	}{
		"nothing is known": {nil, ""},
		"it runs":          {sandbox(running), ""},
		"it is ending":     {sandbox(terminating), "sandbox sandbox-1 is TERMINATING: the server gives no reason; run it again if it was not meant to end"},
		"its time was over": {
			&sandboxv1.Sandbox{SandboxId: "s", Status: &sandboxv1.SandboxStatus{
				State: terminated, StateReason: "time", EffectiveMaxLifetimeSeconds: 5, CreateTime: at(0), EndTime: at(5),
			}},
			"sandbox s is TERMINATED: time; allow it more time with --lifetime",
		},
		"it was ended before its time": {
			&sandboxv1.Sandbox{SandboxId: "s", Status: &sandboxv1.SandboxStatus{
				State: terminated, StateReason: "deleted", EffectiveMaxLifetimeSeconds: 5, CreateTime: at(0), EndTime: at(4),
			}},
			"sandbox s is TERMINATED: deleted; run it again if it was not meant to end",
		},
		"it failed": {sandbox(failed), "sandbox sandbox-1 is FAILED: the server gives no reason; if it ran out of memory, allow it more with --memory"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lifecycle.Explain(c.sandbox); got != c.says {
				t.Errorf("got %q, want %q", got, c.says)
			}
		})
	}
}
