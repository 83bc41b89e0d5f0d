package gateway_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// stop ends a sandbox as the SDKs do.
func stop(t testing.TB, c clients, id string) *sandboxv1.Sandbox {
	t.Helper()
	resp, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id, GracePeriodSeconds: 10})
	if err != nil {
		t.Fatalf("delete: %v", err)
	}
	if state := resp.GetSandbox().GetStatus().GetState(); state != sandboxv1.State_STATE_TERMINATING && state != sandboxv1.State_STATE_TERMINATED {
		t.Errorf("delete answers with state %v", state)
	}
	return awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
}

func TestAStoppedSandboxIsTerminatedAndStaysReadable(t *testing.T) { // traps 10, 12, 13
	for _, how := range []sandboxv1.State{
		sandboxv1.State_STATE_COMPLETED, sandboxv1.State_STATE_FAILED, sandboxv1.State_STATE_TERMINATED,
	} {
		e, h, c := ready(t)
		h.exits = how
		sb := stop(t, c, create(t, c).GetSandboxId())
		if sb.GetStatus().ExitCode == nil || sb.GetStatus().GetExitCode() != 143 || sb.GetStatus().GetEndTime() == nil {
			t.Errorf("status = %v", sb.GetStatus())
		}
		want := []sandboxv1.State{
			sandboxv1.State_STATE_CREATING, sandboxv1.State_STATE_RUNNING,
			sandboxv1.State_STATE_TERMINATING, sandboxv1.State_STATE_TERMINATED,
		}
		if got := e.store.statesOf(sb.GetSandboxId()); !slices.Equal(got, want) { // trap 17
			t.Errorf("states = %v", got)
		}
		if _, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: sb.GetSandboxId()}); err != nil { // trap 12
			t.Errorf("deleting again: %v", err)
		}
		eventually(t, "the runner has forgotten it", h.sees(func(h *host) bool { return len(h.forgotten) > 0 }))
	}
}

func TestWhatCompletedStaysCompleted(t *testing.T) { // traps 11, 14
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	h.exit(id, sandboxv1.State_STATE_COMPLETED, 0)
	sb := awaitState(t, c, id, sandboxv1.State_STATE_COMPLETED)
	if sb.GetStatus().ExitCode == nil || sb.GetStatus().GetExitCode() != 0 {
		t.Errorf("exit code = %v", sb.GetStatus().ExitCode)
	}
	resp, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id})
	if err != nil || resp.GetSandbox().GetStatus().GetState() != sandboxv1.State_STATE_COMPLETED {
		t.Errorf("delete = %v, %v", resp, err)
	}
}

func TestDeletingWhatIsMissing(t *testing.T) { // trap 38
	_, _, c := ready(t)
	_, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "none"})
	wantReason(t, err, apierr.SandboxNotFound)
	resp, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "none", AllowMissing: true})
	if err != nil || resp.GetSandbox() != nil {
		t.Errorf("with allow_missing: %v, %v", resp, err)
	}
}

func TestDeleteAnswersBeforeTheSandboxIsGone(t *testing.T) { // trap 40
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	h.deleteGate = make(chan struct{})
	resp, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id, GracePeriodSeconds: 1000})
	if err != nil || resp.GetSandbox().GetStatus().GetState() != sandboxv1.State_STATE_TERMINATING {
		t.Fatalf("delete = %v, %v", resp, err)
	}
	eventually(t, "the runner was told", h.sees(func(h *host) bool { return len(h.graces) == 1 }))
	if _, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id, GracePeriodSeconds: 20}); err != nil {
		t.Errorf("hurrying: %v", err)
	}
	if _, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id, GracePeriodSeconds: 50}); err != nil {
		t.Errorf("not hurrying: %v", err)
	}
	eventually(t, "the runner was hurried", h.sees(func(h *host) bool { return len(h.graces) == 2 }))
	close(h.deleteGate)
	awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
	if !slices.Equal(h.graces, []int32{300, 20}) {
		t.Errorf("graces = %v", h.graces)
	}
}

func TestDeletingWhileCreating(t *testing.T) {
	_, h, c := ready(t)
	h.gate = make(chan struct{})
	sb := create(t, c)
	stop(t, c, sb.GetSandboxId())
	close(h.gate)
}

func TestADeletionSurvivesARestartOfTheGateway(t *testing.T) {
	e, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	h.deleteGate = make(chan struct{})
	if _, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	e.restart(t)
	close(h.deleteGate)
	awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
}

func TestADeletionWaitsForARunnerThatIsAway(t *testing.T) {
	h := newHost()
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	kill()
	awaitUnhealthy(t, c)
	resp, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id})
	if err != nil || resp.GetSandbox().GetStatus().GetState() != sandboxv1.State_STATE_TERMINATING {
		t.Fatalf("delete = %v, %v", resp, err)
	}
	e.start(t, h, runnerOne)
	awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
}

func TestALostConnectionDoesNotShortenTheGrace(t *testing.T) {
	h := newHost()
	h.deleteGate = make(chan struct{})
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	if _, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id, GracePeriodSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the runner was asked", h.sees(func(h *host) bool { return len(h.graces) == 1 }))
	kill()
	e.start(t, h, runnerOne)
	eventually(t, "the runner was asked again", h.sees(func(h *host) bool { return len(h.graces) == 2 }))
	close(h.deleteGate)
	awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
	if !slices.Equal(h.graces, []int32{60, 60}) {
		t.Errorf("graces = %v", h.graces)
	}
}

func awaitUnhealthy(t testing.TB, c clients) {
	t.Helper()
	eventually(t, "the runner is away", func() bool {
		r, err := c.discovery.GetAvailableRunner(t.Context(), &sandboxv1.GetAvailableRunnerRequest{RunnerId: "runner-1", OrganizationId: org})
		return err == nil && !r.GetHealthy()
	})
}

func TestTheDefaultListHasOnlyWhatLives(t *testing.T) { // trap 35
	_, h, c := ready(t)
	live, done := create(t, c).GetSandboxId(), create(t, c).GetSandboxId()
	h.exit(done, sandboxv1.State_STATE_COMPLETED, 3)
	awaitState(t, c, done, sandboxv1.State_STATE_COMPLETED)
	ids := func(req *sandboxv1.ListSandboxesRequest) (out []string) {
		list, err := c.ListSandboxes(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range list.GetSandboxes() {
			out = append(out, sb.GetSandboxId())
		}
		return out
	}
	for _, test := range []struct {
		req  *sandboxv1.ListSandboxesRequest
		want []string
	}{
		{&sandboxv1.ListSandboxesRequest{}, []string{live}},
		{&sandboxv1.ListSandboxesRequest{ShowTerminated: true}, []string{done, live}},
		{&sandboxv1.ListSandboxesRequest{State: sandboxv1.State_STATE_COMPLETED}, []string{done}},
		{&sandboxv1.ListSandboxesRequest{RunnerIds: []string{"other"}}, nil},
	} {
		if got := ids(test.req); !slices.Equal(got, test.want) {
			t.Errorf("list of %v = %v, want %v", test.req, got, test.want)
		}
	}
}

func TestPurging(t *testing.T) {
	_, _, c := ready(t)
	tagged := create(t, c, func(s *sandboxv1.SandboxSpec) { s.Tags = []string{"x"} }).GetSandboxId()
	other := create(t, c).GetSandboxId()
	for _, req := range []*sandboxv1.PurgeSandboxesRequest{{}, {Tags: []string{"x"}, PurgeAll: true}} {
		_, err := c.PurgeSandboxes(t.Context(), req)
		wantReason(t, err, apierr.InvalidRequest)
	}
	_, err := c.PurgeSandboxes(t.Context(), &sandboxv1.PurgeSandboxesRequest{PurgeAll: true, RequestId: "r"})
	wantReason(t, err, apierr.NotImplemented)
	for _, test := range []struct {
		req  *sandboxv1.PurgeSandboxesRequest
		want int32
	}{
		{&sandboxv1.PurgeSandboxesRequest{PurgeAll: true, DryRun: true}, 2},
		{&sandboxv1.PurgeSandboxesRequest{Tags: []string{"x"}}, 1},
	} {
		resp, err := c.PurgeSandboxes(t.Context(), test.req)
		if err != nil || resp.GetPurgeCount() != test.want || len(resp.GetFailedSandboxIds()) > 0 {
			t.Errorf("purge %v = %v, %v", test.req, resp, err)
		}
	}
	awaitState(t, c, tagged, sandboxv1.State_STATE_TERMINATED)
	if state := get(t, c, other).GetStatus().GetState(); state != sandboxv1.State_STATE_RUNNING {
		t.Errorf("the other is %v", state)
	}
}

func TestDrainingEndsEverySandboxOfARunner(t *testing.T) {
	e, h, c := ready(t)
	for range 3 {
		create(t, c)
	}
	h.deleteGate = make(chan struct{})
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.gateway.DrainRunner(short, runnerOne.RunnerKey, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a drain in no time: %v", err)
	}
	var group errgroup.Group
	group.Go(func() error { return e.gateway.DrainRunner(t.Context(), runnerOne.RunnerKey, 1500*time.Millisecond) })
	close(h.deleteGate)
	if err := group.Wait(); err != nil {
		t.Errorf("drain: %v", err)
	}
	list, err := c.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
	if err != nil || len(list.GetSandboxes()) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
	if err := e.gateway.DrainRunner(t.Context(), gateway.RunnerKey{OrganizationID: org, RunnerID: "none"}, 0); err != nil {
		t.Errorf("draining a runner without sandboxes: %v", err)
	}
}
