package provider

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// object is the state or plan of a runner, given as JSON.
func object(t *testing.T, members string) tftypes.Value {
	t.Helper()
	all := map[string]any{
		"id": "r", "runner_id": "r", "cluster_id": "c", "zone": "z", "runner_group_id": "default", "etag": "etag-1",
		"policy": map[string]any{}, "spec": map[string]any{"release_channel": "RELEASE_CHANNEL_STABLE"},
	}
	if err := json.Unmarshal([]byte(members), &all); err != nil {
		t.Fatal(err)
	}
	return fromJSON(t, testTranslation().object, all)
}

func testResource() *runnerResource { return newRunnerResource().(*runnerResource) }

func TestAnUpdateNamesWhatDiffersAndCarriesTheEtagOfTheState(t *testing.T) {
	state := object(t, `{"display_name": "Old", "spec": {"release_channel": "RELEASE_CHANNEL_STABLE", "volumes": {"enabled": true}}}`)
	plan := object(t, `{"etag": "unknown", "policy": {"display_name": "New"}}`)
	update, err := testResource().updateRequest(state, plan)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"display_name", "policy", "spec.volumes"}; !slices.Equal(update.GetUpdateMask().GetPaths(), want) {
		t.Errorf("mask %v, want %v", update.GetUpdateMask().GetPaths(), want)
	}
	sent := update.GetManagedRunner()
	if sent.GetEtag() != "etag-1" || sent.GetDisplayName() != "" || sent.GetSpec().GetVolumes() != nil {
		t.Errorf("sent %v", sent)
	}
}

func TestAPolicyIsNotWrittenWithoutAnEtag(t *testing.T) {
	_, err := testResource().updateRequest(object(t, `{"etag": null}`), object(t, `{"policy": {"display_name": "New"}}`))
	if err == nil || !strings.Contains(err.Error(), "etag") {
		t.Errorf("got %v, want an error about the etag", err)
	}
}

func TestAnUnknownSpecChangesNothing(t *testing.T) {
	update, err := testResource().updateRequest(object(t, `{}`), object(t, `{"spec": "unknown"}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(update.GetUpdateMask().GetPaths()) != 0 || update.GetManagedRunner().GetEtag() != "" {
		t.Errorf("got %v", update)
	}
}

func TestASettingWithoutPolicyChangeCarriesNoEtag(t *testing.T) {
	update, err := testResource().updateRequest(object(t, `{}`), object(t, `{"display_name": "New"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := update.GetManagedRunner().GetEtag(); got != "" {
		t.Errorf("etag %q", got)
	}
}

func TestAfterAPlanTheStateKeepsWhatWasPlannedAndTakesWhatIsObserved(t *testing.T) {
	runner := testTranslation()
	plan := object(t, `{"display_name": "Mine", "etag": "unknown", "active_revision": "unknown"}`)
	answer := &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{RunnerId: "r", RunnerGroupId: "default", Zone: "z", ClusterId: "c"}, DisplayName: "Theirs",
		Spec:   &sandboxv1.ManagedRunnerSpec{ReleaseChannel: sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE},
		Policy: &sandboxv1.Policy{}, Etag: "etag-2", ActiveRevision: 3,
	}
	state, differing, err := runner.applied(answer, plan)
	if err != nil {
		t.Fatal(err)
	}
	if textOf(state, "display_name") != "Mine" || textOf(state, "etag") != "etag-2" {
		t.Errorf("state %s", state)
	}
	if !slices.Equal(differing, []string{"display_name"}) {
		t.Errorf("differing %v", differing)
	}
	read, err := runner.stored(answer, state)
	if err != nil {
		t.Fatal(err)
	}
	if textOf(read, "display_name") != "Theirs" {
		t.Error("the next read does not show the concurrent change")
	}
}

func TestAnswersThatCannotBeStoredAreRefused(t *testing.T) {
	whole := func() *sandboxv1.ManagedRunner {
		return &sandboxv1.ManagedRunner{Identity: &sandboxv1.RunnerIdentity{RunnerId: "r"}, Spec: &sandboxv1.ManagedRunnerSpec{}, Policy: &sandboxv1.Policy{}}
	}
	if diags := checkResponse(whole(), "r"); diags.HasError() {
		t.Errorf("a whole answer is refused: %v", diags)
	}
	for name, c := range map[string]struct {
		spoil func(*sandboxv1.ManagedRunner)
		wants string
	}{
		"no identity":    {func(m *sandboxv1.ManagedRunner) { m.Identity = nil }, "import"},
		"another runner": {func(m *sandboxv1.ManagedRunner) { m.Identity.RunnerId = "other" }, `"other"`},
		"no spec":        {func(m *sandboxv1.ManagedRunner) { m.Spec = nil }, "v1 managed runner API"},
		"no policy":      {func(m *sandboxv1.ManagedRunner) { m.Policy = nil }, "v1 managed runner API"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := whole()
			c.spoil(answer)
			diags := checkResponse(answer, "r")
			if !diags.HasError() || !strings.Contains(diags.Errors()[0].Detail(), c.wants) {
				t.Errorf("got %v, want %q", diags, c.wants)
			}
		})
	}
}

func TestAViolationIsShownAtItsAttribute(t *testing.T) {
	r := testResource()
	overrides := path.Root("spec").AtName("overrides")
	for field, want := range map[string]path.Path{
		"managed_runner.spec.overrides.resources.cpu_request": overrides.AtName("resources").AtName("cpu_request"),
		"managedRunner.spec.overrides.resources.cpuRequest":   overrides.AtName("resources").AtName("cpu_request"),
		`spec.overrides.env["A.B"]`:                           overrides.AtName("env").AtMapKey("A.B"),
		"spec.overrides.affinity.nodeAffinity":                overrides.AtName("affinity"),
		"managed_runner.identity.zone":                        path.Root("zone"),
		"spec.maintenance_policy.windows[1].cron":             path.Root("spec").AtName("maintenance_policy").AtName("windows").AtListIndex(1).AtName("cron"),
		"policy.control_plane_access.source_ip_allowlist.cidrs[0]": path.Root("policy").AtName("control_plane_access").
			AtName("source_ip_allowlist").AtName("cidrs"),
	} {
		got, ok := r.attribute(field)
		if !ok || !got.Equal(want) {
			t.Errorf("%s is shown at %s, want %s", field, got, want)
		}
	}
	if at, ok := r.attribute("request_id"); ok {
		t.Errorf("request_id is shown at %s", at)
	}
}

func TestEveryViolationBecomesADiagnostic(t *testing.T) {
	err := apierr.Connect(apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{
		{Field: "managed_runner.identity.zone", Description: "is wrong"},
		{Field: "update_mask", Description: "is empty"},
	}))
	diags := testResource().explain(err)
	if len(diags) != 2 || diags[0].Summary() != "Bad Request" || !strings.Contains(diags[1].Detail(), "update_mask: is empty") {
		t.Errorf("got %v", diags)
	}
}

func TestErrorsAreTitledByTheirCode(t *testing.T) {
	for reason, want := range map[apierr.Reason]string{
		apierr.RunnerNotFound: "Not Found", apierr.ClusterTaken: "Already Exists", apierr.ETagMismatch: "Failed Precondition",
		apierr.Unauthenticated: "Unauthenticated", apierr.PermissionDenied: "Unauthorized", apierr.StorageFull: "Quota Exceeded",
		apierr.Internal: "Internal Error",
	} {
		diags := testResource().explain(apierr.Connect(apierr.New(reason, "what was wrong")))
		if len(diags) != 1 || diags[0].Summary() != want || !strings.Contains(diags[0].Detail(), string(reason)) {
			t.Errorf("%s: got %v, want title %q", reason, diags, want)
		}
	}
	if diags := testResource().explain(errors.New("broken")); diags[0].Summary() != "Unexpected Error" {
		t.Errorf("got %v", diags)
	}
	if diags := testResource().explain(connect.NewError(connect.CodeUnimplemented, errors.New("not here"))); diags[0].Detail() != "not here" {
		t.Errorf("got %v", diags)
	}
}
