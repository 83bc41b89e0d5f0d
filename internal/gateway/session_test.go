package gateway_test

import (
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	clocktesting "k8s.io/utils/clock/testing"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

func TestALostSandboxFails(t *testing.T) {
	e, h, c := ready(t)
	kept, gone := create(t, c).GetSandboxId(), create(t, c).GetSandboxId()
	h.lose(gone)
	e.restart(t)
	sb := awaitState(t, c, gone, sandboxv1.State_STATE_FAILED)
	if sb.GetStatus().GetStateReason() == "" {
		t.Error("no reason is given")
	}
	if state := get(t, c, kept).GetStatus().GetState(); state != sandboxv1.State_STATE_RUNNING {
		t.Errorf("the other is %v", state)
	}
}

func TestALostSandboxThatWasToEndIsTerminated(t *testing.T) { // trap 10
	h := newHost()
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	kill()
	awaitUnhealthy(t, c)
	if _, err := c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	h.lose(id)
	e.start(t, h, runnerOne)
	awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
}

func TestWhatEndedWhileNobodyWatchedIsSeen(t *testing.T) {
	h := newHost()
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	kill()
	h.exit(id, sandboxv1.State_STATE_COMPLETED, 7)
	e.restart(t)
	e.start(t, h, runnerOne)
	if sb := awaitState(t, c, id, sandboxv1.State_STATE_COMPLETED); sb.GetStatus().GetExitCode() != 7 {
		t.Errorf("exit code = %d", sb.GetStatus().GetExitCode())
	}
}

func TestASandboxThatNobodyOwnsIsRemoved(t *testing.T) {
	e := newEnvironment(t)
	h := newHost()
	h.set("stray", func(s *sandboxv1.SandboxStatus) { s.State = sandboxv1.State_STATE_RUNNING })
	h.set("stray-done", func(s *sandboxv1.SandboxStatus) { s.State = sandboxv1.State_STATE_COMPLETED })
	e.start(t, h, runnerOne)
	eventually(t, "both are gone", func() bool { return !h.has("stray") && !h.has("stray-done") })
	if !slices.Equal(h.deleted, []string{"stray"}) {
		t.Errorf("deleted %v", h.deleted)
	}
}

func TestASandboxOfAnEndedRowIsRemoved(t *testing.T) {
	h := newHost()
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	stop(t, c, id)
	kill()
	// It came back, as after a restored disk.
	h.set(id, func(s *sandboxv1.SandboxStatus) { s.State = sandboxv1.State_STATE_RUNNING })
	e.start(t, h, runnerOne)
	eventually(t, "it is gone", func() bool { return !h.has(id) })
	awaitState(t, c, id, sandboxv1.State_STATE_TERMINATED)
}

func TestASandboxThatTheRunnerNeverGotIsCreatedAgain(t *testing.T) {
	h := newHost()
	h.gate = make(chan struct{})
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	for range 3 {
		h.set(id, func(s *sandboxv1.SandboxStatus) { s.StateReason += "." })
	}
	kill()
	h.lose(id) // and counts anew
	close(h.gate)
	e.restart(t)
	e.start(t, h, runnerOne)
	awaitState(t, c, id, sandboxv1.State_STATE_RUNNING)
}

func TestAnOlderRecordNeverWins(t *testing.T) {
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	h.exit(id, sandboxv1.State_STATE_COMPLETED, 0)
	awaitState(t, c, id, sandboxv1.State_STATE_COMPLETED)
	h.set(id, func(s *sandboxv1.SandboxStatus) { s.State = sandboxv1.State_STATE_RUNNING })
	eventually(t, "the runner was told to remove it", func() bool { return !h.has(id) })
	if state := get(t, c, id).GetStatus().GetState(); state != sandboxv1.State_STATE_COMPLETED {
		t.Errorf("state = %v", state)
	}
}

func TestAnUnknownStateOfARunnerIsIgnored(t *testing.T) { // traps 15, 16
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	for _, state := range []sandboxv1.State{0, 99} {
		h.set(id, func(s *sandboxv1.SandboxStatus) { s.State = state })
	}
	h.exit(id, sandboxv1.State_STATE_COMPLETED, 0)
	awaitState(t, c, id, sandboxv1.State_STATE_COMPLETED)
}

func TestTheSandboxesOfARunnerThatIsAwayAreKept(t *testing.T) {
	h := newHost()
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	kill()
	awaitUnhealthy(t, c)
	if identity := <-e.runners.disconnected; identity != runnerOne {
		t.Errorf("disconnected %v", identity)
	}
	for range 2 {
		if state := get(t, c, id).GetStatus().GetState(); state != sandboxv1.State_STATE_RUNNING {
			t.Errorf("state = %v", state)
		}
		_, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}})
		wantReason(t, err, apierr.RunnerUnavailable)
		_, err = c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}})
		wantReason(t, err, apierr.RunnerUnavailable)
		e.restart(t) // the answers are the same from the store alone
	}
	e.start(t, h, runnerOne)
	e.awaitHealthy(t, c, "runner-1")
	if _, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}}); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

func TestTheNewestRevisionThatServesWins(t *testing.T) {
	e := newEnvironment(t)
	oldHost, newHost := newHost(), newHost()
	newHost.standby = true
	_, kill := e.start(t, oldHost, runnerOne)
	c := e.clients(t, org)
	e.awaitHealthy(t, c, "runner-1")
	id := create(t, c).GetSandboxId()
	next := runnerOne
	next.Revision = 2
	e.start(t, newHost, next)
	eventually(t, "the new revision is connected", func() bool {
		e.runners.mu.Lock()
		defer e.runners.mu.Unlock()
		return e.runners.connections[next] == 1
	})
	exec := func() error {
		_, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}})
		return err
	}
	if err := exec(); err != nil || oldHost.execs != 1 {
		t.Errorf("before the new one serves: %v, %d at the old one", err, oldHost.execs)
	}
	// The old process hands over; the sandboxes are the machine's.
	newHost.mu.Lock()
	newHost.standby = false
	newHost.sandboxes[id] = oldHost.sandboxes[id]
	newHost.mu.Unlock()
	eventually(t, "calls go to the new one", func() bool {
		err := exec()
		newHost.mu.Lock()
		defer newHost.mu.Unlock()
		return err == nil && newHost.execs > 0
	})
	kill()
	if identity := <-e.runners.disconnected; identity != runnerOne {
		t.Errorf("disconnected %v", identity)
	}
	if err := exec(); err != nil {
		t.Errorf("after the old one is gone: %v", err)
	}
}

func TestPoliciesAreHandedToEveryProcess(t *testing.T) {
	e, h, _ := ready(t)
	policy := gateway.PolicySnapshot{Policy: &sandboxv1.Policy{}, ETag: "etag-2"}
	if err := e.gateway.PushPolicy(t.Context(), runnerOne.RunnerKey, policy); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(h.policies, []string{"etag-1", "etag-2"}) {
		t.Errorf("policies = %v", h.policies)
	}
	if err := e.gateway.PushPolicy(t.Context(), gateway.RunnerKey{OrganizationID: org, RunnerID: "none"}, policy); err != nil {
		t.Errorf("to a runner that is not connected: %v", err)
	}
}

func TestEnrolmentAndHeartbeats(t *testing.T) {
	e, _, _ := ready(t)
	token := e.runners.credential(runnerOne)
	client := runnerv1connect.NewEnrollmentServiceClient(e.server.Client(), e.server.URL)
	resp, err := client.Enroll(t.Context(), &runnerv1.EnrollRequest{EnrollmentToken: token})
	if err != nil || resp.GetRunnerId() != "runner-1" || resp.GetOrganizationId() != org || resp.GetRevision() != 1 {
		t.Fatalf("enrol = %v, %v", resp, err)
	}
	_, err = client.Enroll(t.Context(), &runnerv1.EnrollRequest{EnrollmentToken: "stale"})
	wantReason(t, err, apierr.Unauthenticated)

	beat := func(credential string) error {
		ctx, call := connect.NewClientContext(t.Context())
		call.RequestHeader().Set("Authorization", "Bearer "+credential)
		_, err := client.Heartbeat(ctx, &runnerv1.HeartbeatRequest{Capacity: &runnerv1.Capacity{CpuMillicores: 100}})
		return err
	}
	wantReason(t, beat("stale"), apierr.Unauthenticated)
	if err := beat(resp.GetCredential()); err != nil {
		t.Fatal(err)
	}
	r, err := e.clients(t, org).discovery.GetAvailableRunner(t.Context(), &sandboxv1.GetAvailableRunnerRequest{RunnerId: "runner-1", OrganizationId: org})
	if err != nil || r.GetCapabilities().GetMaxCpuMillicores() != 100 || e.runners.heartbeats != 1 {
		t.Errorf("after a heartbeat: %v, %v, %d", r, err, e.runners.heartbeats)
	}
}

func TestARunnerThatIsNotWhatItsCredentialSaysIsNotServed(t *testing.T) {
	e := newEnvironment(t)
	h := newHost()
	other := runnerOne
	other.Revision = 3
	e.startAs(t, h, other, runnerOne)
	eventually(t, "it has come back after a refusal", h.sees(func(h *host) bool { return h.described > 1 }))
	e.runners.mu.Lock()
	defer e.runners.mu.Unlock()
	if len(e.runners.connections) > 0 {
		t.Errorf("connections = %v", e.runners.connections)
	}
}

func TestEndedSandboxesAreForgottenAfterADay(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC))
	e := newEnvironmentAt(t, clock)
	h := newHost()
	e.start(t, h, runnerOne)
	c := e.clients(t, org)
	e.awaitHealthy(t, c, "runner-1")
	id := create(t, c).GetSandboxId()
	stop(t, c, id)
	clock.Step(23 * time.Hour)
	get(t, c, id)
	eventually(t, "it is forgotten", func() bool {
		clock.Step(time.Hour)
		_, err := c.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
		return apierr.ReasonOf(err) == apierr.SandboxNotFound
	})
}

func TestASandboxThatIsNeverCreatedFails(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC))
	e := newEnvironmentAt(t, clock)
	h := newHost()
	h.gate = make(chan struct{})
	defer close(h.gate)
	e.start(t, h, runnerOne)
	c := e.clients(t, org)
	e.awaitHealthy(t, c, "runner-1")
	var group errgroup.Group
	group.Go(func() error {
		_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}})
		return err
	})
	eventually(t, "the runner was asked", h.sees(func(h *host) bool { return len(h.created) == 1 }))
	eventually(t, "it has failed", func() bool {
		clock.Step(time.Minute)
		list, err := c.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{State: sandboxv1.State_STATE_FAILED})
		return err == nil && len(list.GetSandboxes()) == 1
	})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, "the runner has nothing of it", h.sees(func(h *host) bool { return len(h.sandboxes) == 0 }))
}

func TestTheSandboxesOfARemovedRunnerFail(t *testing.T) {
	h := newHost()
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	kill()
	awaitUnhealthy(t, c)
	e.restart(t)
	e.runners.remove(runnerOne.RunnerKey)
	awaitState(t, c, id, sandboxv1.State_STATE_FAILED)
}
