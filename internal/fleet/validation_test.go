package fleet_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// plannerFake answers every plan alike, and remembers what it was asked.
type plannerFake struct{ present, planned []gateway.PolicySnapshot }

func (p *plannerFake) PlanPolicy(_ context.Context, _ gateway.RunnerKey, present, planned gateway.PolicySnapshot) (*adminv1.PolicyPlan, error) {
	p.present, p.planned = append(p.present, present), append(p.planned, planned)
	return &adminv1.PolicyPlan{CheckedSandboxes: 7}, nil
}

// wish is a runner that can be created.
func (w *world) wish() *sandboxv1.ManagedRunner {
	return &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{RunnerId: w.key.RunnerID, Zone: "Zone-A", ClusterId: w.place.ClusterID},
		Policy:   &sandboxv1.Policy{},
	}
}

// try asks for a dry run, and fails the test when it changed anything.
func (w *world) try(planner *plannerFake, req *adminv1.ValidateManagedRunnerRequest) (*adminv1.ValidateManagedRunnerResponse, error) {
	w.t.Helper()
	before := w.list()
	answer, err := fleet.NewValidation(w.fleet.Management, planner).ValidateManagedRunner(w.admin, req)
	if diff := cmp.Diff(before, w.list(), protocmp.Transform()); diff != "" {
		w.t.Errorf("the dry run changed (-before +after):\n%s", diff)
	}
	return answer, err
}

// list shows every runner, when whatever the reconciler was at is done.
func (w *world) list() *sandboxv1.ListManagedRunnersResponse {
	w.t.Helper()
	synctest.Wait()
	all, err := w.fleet.Management.ListManagedRunners(w.admin, &sandboxv1.ListManagedRunnersRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func TestADryCreationAnswersLikeACreation(t *testing.T) {
	inWorld(t, func(w *world) {
		planner := &plannerFake{}
		req := &adminv1.ValidateManagedRunnerRequest{ManagedRunner: w.wish()}
		answer, err := w.try(planner, req)
		if err != nil {
			t.Fatal(err)
		}
		created, err := w.fleet.Management.CreateManagedRunner(w.admin, &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: w.wish()})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(created, answer.GetManagedRunner(), protocmp.Transform(),
			protocmp.IgnoreFields(&sandboxv1.ManagedRunner{}, "etag")); diff != "" {
			t.Errorf("(-created +tried):\n%s", diff)
		}
		if !answer.GetNewRevision() || answer.GetManagedRunner().GetEtag() != "" || len(planner.planned) != 0 {
			t.Errorf("new revision %v, etag %q, %d plans", answer.GetNewRevision(), answer.GetManagedRunner().GetEtag(), len(planner.planned))
		}

		_, err = w.try(planner, req)
		if apierr.ReasonOf(err) != apierr.RunnerExists {
			t.Errorf("the same id again: %v", err)
		}
		other := w.wish()
		other.Identity.RunnerId = "runner-2"
		_, err = w.try(planner, &adminv1.ValidateManagedRunnerRequest{ManagedRunner: other})
		if apierr.ReasonOf(err) != apierr.ClusterTaken {
			t.Errorf("the same cluster again: %v", err)
		}
		other.Identity.ClusterId = "00000000-0000-0000-0000-00000000beef"
		_, err = w.try(planner, &adminv1.ValidateManagedRunnerRequest{ManagedRunner: other})
		if apierr.ReasonOf(err) != apierr.ClusterNotFound {
			t.Errorf("an unknown cluster: %v", err)
		}
		_, err = w.try(planner, &adminv1.ValidateManagedRunnerRequest{ManagedRunner: w.wish(), UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"policy"}}})
		wantViolation(t, err, "update_mask", "runner_id")
	})
}

func TestADryUpdateSaysWhatItWouldChange(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		etag := w.get().GetEtag()
		free := &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Resources: &sandboxv1.ResourceConstraints{MaxCpu: "1"}}}
		yes := true
		for name, test := range map[string]struct {
			body    *sandboxv1.ManagedRunner
			mask    []string
			changed []string
			rollout bool
			planned bool
		}{
			"a name":         {&sandboxv1.ManagedRunner{DisplayName: "new"}, []string{"display_name", "spec.overrides"}, []string{"display_name"}, false, false},
			"nothing":        {&sandboxv1.ManagedRunner{Policy: &sandboxv1.Policy{}, Etag: etag}, []string{"policy", "display_name"}, nil, false, false},
			"the policy":     {&sandboxv1.ManagedRunner{Policy: free, Etag: etag}, []string{"policy"}, []string{"policy"}, false, true},
			"limits":         {&sandboxv1.ManagedRunner{Spec: &sandboxv1.ManagedRunnerSpec{EnforceResourceLimits: &yes}}, []string{"spec.enforce_resource_limits"}, []string{"spec.enforce_resource_limits"}, false, true},
			"the deployment": {&sandboxv1.ManagedRunner{Spec: &sandboxv1.ManagedRunnerSpec{Overrides: &sandboxv1.RunnerOverrides{Args: []string{"-v"}}}}, []string{"spec.overrides"}, []string{"spec.overrides"}, true, false},
		} {
			planner := &plannerFake{}
			answer, err := w.try(planner, &adminv1.ValidateManagedRunnerRequest{
				RunnerId: w.key.RunnerID, ManagedRunner: test.body, UpdateMask: &fieldmaskpb.FieldMask{Paths: test.mask},
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if diff := cmp.Diff(test.changed, answer.GetChangedPaths()); diff != "" {
				t.Errorf("%s: changed paths (-want +got):\n%s", name, diff)
			}
			if answer.GetNewRevision() != test.rollout || (answer.GetManagedRunner().GetTargetRevision() == 2) != test.rollout {
				t.Errorf("%s: new revision %v, target revision %d", name, answer.GetNewRevision(), answer.GetManagedRunner().GetTargetRevision())
			}
			if (answer.GetPolicyPlan().GetCheckedSandboxes() == 7) != test.planned || (len(planner.planned) == 1) != test.planned {
				t.Errorf("%s: plan %v of %d", name, answer.GetPolicyPlan(), len(planner.planned))
			}
		}
	})
}

func TestADryUpdateIsRefusedLikeAnUpdate(t *testing.T) {
	inWorld(t, func(w *world) {
		planner := &plannerFake{}
		try := func(body *sandboxv1.ManagedRunner, mask ...string) error {
			_, err := w.try(planner, &adminv1.ValidateManagedRunnerRequest{
				RunnerId: w.key.RunnerID, ManagedRunner: body, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
			})
			return err
		}
		if err := try(&sandboxv1.ManagedRunner{}, "display_name"); apierr.ReasonOf(err) != apierr.RunnerNotFound {
			t.Errorf("no runner: %v", err)
		}
		w.create(&sandboxv1.Policy{})
		wantViolation(t, try(&sandboxv1.ManagedRunner{}, "spec"), "update_mask")
		wantViolation(t, try(&sandboxv1.ManagedRunner{Policy: &sandboxv1.Policy{}}, "policy"), "etag")
		if err := try(&sandboxv1.ManagedRunner{Policy: &sandboxv1.Policy{}, Etag: "old"}, "policy"); apierr.ReasonOf(err) != apierr.ETagMismatch {
			t.Errorf("a stale etag: %v", err)
		}
		bad := &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Resources: &sandboxv1.ResourceConstraints{MaxCpu: "many"}}}
		wantViolation(t, try(&sandboxv1.ManagedRunner{Policy: bad, Etag: w.get().GetEtag()}, "policy"), "policy.constraints.resources.max_cpu")
	})
}
