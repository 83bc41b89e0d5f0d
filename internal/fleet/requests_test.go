package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/pagetoken"
)

// wantViolation wants an invalid request with this one violation, which says
// all of the texts.
func wantViolation(t *testing.T, err error, field string, says ...string) {
	t.Helper()
	if reason := apierr.ReasonOf(err); reason != apierr.InvalidRequest {
		t.Errorf("reason %q (%v), want %s", reason, err, apierr.InvalidRequest)
		return
	}
	got := apierr.BadRequest(apierr.Connect(err)).GetFieldViolations()
	if len(got) != 1 || got[0].GetField() != field {
		t.Errorf("violations %v, want one of %s", got, field)
		return
	}
	for _, text := range says {
		if !strings.Contains(got[0].GetDescription(), text) {
			t.Errorf("%s: %q does not say %q", field, got[0].GetDescription(), text)
		}
	}
}

func TestListRefusesPageTokensThatItDidNotGiveOut(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		other := pagetoken.List{"ListManagedRunners", "another organization", "", "", ""}
		for _, token := range []string{"garbage", "?", "cnVubmVyLTE", other.Token([]byte("runner-1"))} {
			_, err := w.fleet.Management.ListManagedRunners(w.admin, &sandboxv1.ListManagedRunnersRequest{PageToken: token})
			wantViolation(t, err, "page_token")
		}
	})
}

// rename updates the display name under a mask of those paths.
func (w *world) rename(ctx context.Context, paths ...string) (*sandboxv1.ManagedRunner, error) {
	return w.fleet.Management.UpdateManagedRunner(ctx, &sandboxv1.UpdateManagedRunnerRequest{
		RunnerId:      w.key.RunnerID,
		ManagedRunner: &sandboxv1.ManagedRunner{DisplayName: strings.Join(paths, " ")},
		UpdateMask:    &fieldmaskpb.FieldMask{Paths: paths},
	})
}

func TestMaskPathsAreUnderstoodInBothSpellings(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		for _, paths := range [][]string{
			{"display_name"},
			{"displayName"},
			{"displayName", "display_name", "identity.runnerGroupId", "spec.maintenancePolicy", "spec.tenant_metrics"},
		} {
			updated, err := w.rename(w.admin, paths...)
			if err != nil || updated.GetDisplayName() != strings.Join(paths, " ") {
				t.Errorf("%q: %v, %v", paths, updated.GetDisplayName(), err)
			}
		}
	})
}

func TestARefusedMaskPathIsNamedWithWhatMayBeNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		all := []string{"display_name", "identity.runner_group_id", "policy", "spec.overrides"}
		for path, says := range map[string][]string{
			"*":                           append(slices.Clone(all), `"*"`),
			"displayname":                 append(slices.Clone(all), `"displayname"`),
			"createTime":                  append(slices.Clone(all), `"createTime"`),
			"spec":                        {"spec.overrides", "spec.release_channel"},
			"identity.zone":               {"identity.runner_group_id"},
			"identity.clusterId":          {`"identity.clusterId"`, "identity.runner_group_id"},
			"policy.constraints":          {`"policy.constraints"`, `use "policy"`},
			"spec.maintenancePolicy.cron": {`use "spec.maintenance_policy"`},
		} {
			_, err := w.rename(w.admin, path)
			wantViolation(t, err, "update_mask", says...)
		}
		_, err := w.rename(w.admin)
		wantViolation(t, err, "update_mask", all...)
	})
}

func TestARunnerIsInTheZoneOfItsCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		create := func(zone string) error {
			_, err := w.fleet.Management.CreateManagedRunner(w.admin, &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: &sandboxv1.ManagedRunner{
				Identity: &sandboxv1.RunnerIdentity{RunnerId: w.key.RunnerID, Zone: zone, ClusterId: w.place.ClusterID},
				Policy:   &sandboxv1.Policy{},
			}})
			return err
		}
		wantViolation(t, create("zone-b"), "identity.zone", `"zone-b"`, `"zone-a"`, w.place.ClusterID)
		if !w.gone() {
			t.Error("the refused runner was stored")
		}
		if err := create("Zone-A"); err != nil {
			t.Errorf("the cluster's zone in other letters: %v", err)
		}
	})
}
