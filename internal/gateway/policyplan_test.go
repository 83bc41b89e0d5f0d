package gateway_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// running puts a sandbox with that CPU request on runner-1.
func (e *environment) running(id, cpu string, state sandboxv1.State) {
	record := &gateway.Record{
		SandboxID: id, OrganizationID: org, UserID: "user-1", RunnerID: runnerOne.RunnerID, CreateTime: time.Unix(int64(len(e.store.records)), 0),
		Spec: &sandboxv1.SandboxSpec{Tags: []string{"job"}, Containers: []*sandboxv1.Container{{
			Name: "main", Image: "busybox", Command: "true", Resources: &sandboxv1.Resources{Cpu: cpu},
		}}},
		Status: &sandboxv1.SandboxStatus{State: state},
	}
	if state != sandboxv1.State_STATE_RUNNING {
		record.EndTime = time.Unix(100, 0)
	}
	e.store.put(record)
}

func TestAPolicyPlanNamesTheLiveSandboxesThatWouldBeRefused(t *testing.T) {
	e := newEnvironment(t)
	for i := range 7 {
		e.running(fmt.Sprintf("small-%d", i), "500m", sandboxv1.State_STATE_RUNNING)
	}
	for _, cpu := range []string{"2", "4", "16"} {
		e.running("large-"+cpu, cpu, sandboxv1.State_STATE_RUNNING)
	}
	e.running("ended", "4", sandboxv1.State_STATE_COMPLETED)

	most := func(cpu string) gateway.PolicySnapshot {
		return gateway.PolicySnapshot{Policy: &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{
			Resources: &sandboxv1.ResourceConstraints{MaxCpu: cpu},
		}}}
	}
	plan, err := e.gateway.PlanPolicy(t.Context(), runnerOne.RunnerKey, most("8"), most("1"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(cpu string, already bool) *adminv1.RefusedSandbox {
		return &adminv1.RefusedSandbox{
			SandboxId: "large-" + cpu, UserId: "user-1", State: sandboxv1.State_STATE_RUNNING, Tags: []string{"job"}, RefusedAlready: already,
			Violations: []*adminv1.RuleViolation{{Field: "spec.containers[0].resources.cpu", Reason: "MAX_CPU"}},
		}
	}
	want := &adminv1.PolicyPlan{
		CheckedSandboxes: 10,
		RefusedSandboxes: []*adminv1.RefusedSandbox{refused("2", false), refused("4", false), refused("16", true)},
	}
	if diff := cmp.Diff(want, plan, protocmp.Transform(), protocmp.IgnoreFields(&adminv1.RuleViolation{}, "description")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	lenient, err := e.gateway.PlanPolicy(t.Context(), runnerOne.RunnerKey, most("1"), most("32"))
	if err != nil || lenient.GetCheckedSandboxes() != 10 || len(lenient.GetRefusedSandboxes()) != 0 {
		t.Errorf("a wider policy: %v, %v", lenient, err)
	}
	none, err := e.gateway.PlanPolicy(t.Context(), runnerOne.RunnerKey, most("8"), gateway.PolicySnapshot{})
	if err != nil || len(none.GetRefusedSandboxes()) != 10 || none.GetRefusedSandboxes()[0].GetViolations()[0].GetField() != "policy" {
		t.Errorf("no policy: %v, %v", none, err)
	}
}
