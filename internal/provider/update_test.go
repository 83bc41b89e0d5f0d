package provider

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/terraform-plugin-framework/diag"
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
	spec, constraints := path.Root("spec"), path.Root("policy").AtName("constraints")
	windows := spec.AtName("maintenance_policy").AtName("windows")
	for field, want := range map[string]struct {
		at   path.Path
		name string
	}{
		"managed_runner.spec.overrides.resources.cpu_request": {
			spec.AtName("overrides").AtName("resources").AtName("cpu_request"), "spec.overrides.resources.cpu_request",
		},
		"managedRunner.spec.overrides.resources.cpuRequest": {
			spec.AtName("overrides").AtName("resources").AtName("cpu_request"), "spec.overrides.resources.cpu_request",
		},
		`spec.overrides.env["A.B"]`: {
			spec.AtName("overrides").AtName("env").AtMapKey("A.B"), `spec.overrides.env["A.B"]`,
		},
		`spec.overrides.labels["a]\"b"]`: {
			spec.AtName("overrides").AtName("labels").AtMapKey(`a]"b`), `spec.overrides.labels["a]\"b"]`,
		},
		"spec.overrides.affinity.nodeAffinities": {
			spec.AtName("overrides").AtName("affinity"), "spec.overrides.affinity.nodeAffinities",
		},
		"managed_runner.identity.zone":            {path.Root("zone"), "zone"},
		"identity.cluster_id":                     {path.Root("cluster_id"), "cluster_id"},
		"spec.maintenance_policy.windows[1].cron": {windows.AtListIndex(1).AtName("cron"), "spec.maintenance_policy.windows[1].cron"},
		"policy.constraints.resources.default_memory": {
			constraints.AtName("resources").AtName("default_memory"), "policy.constraints.resources.default_memory",
		},
		"policy.constraints.image.allowed_images[2]": {
			constraints.AtName("image").AtName("allowed_images"), "policy.constraints.image.allowed_images[2]",
		},
		"policy.constraints.network.defaultEgress[0].https_hostname": {
			constraints.AtName("network").AtName("default_egress").AtListIndex(0).AtName("https_hostname"),
			"policy.constraints.network.default_egress[0].https_hostname",
		},
		"policy.base.hostNetwork": {path.Root("policy").AtName("base"), "policy.base.hostNetwork"},
		"request_id":              {path.Empty(), "request_id"},
		`spec.overrides.env["`:    {spec.AtName("overrides").AtName("env"), "spec.overrides.env"},
	} {
		if at, name := r.attribute(field); !at.Equal(want.at) || name != want.name {
			t.Errorf("%s is shown at %s as %s, want %s as %s", field, at, name, want.at, want.name)
		}
	}
}

func TestEveryViolationBecomesADiagnosticThatNamesItsAttribute(t *testing.T) {
	err := apierr.Connect(apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{
		{Field: "managed_runner.identity.zone", Reason: "REQUIRED", Description: "is required: the zone of the cluster"},
		{Field: "spec.maintenance_policy.windows[0].cron", Reason: "INVALID_CRON", Description: `"0 25 * * *" has a wrong hour`},
		{Field: "update_mask", Description: "is empty"},
	}))
	const reason = "\n\nReason: CWSANDBOX_INVALID_REQUEST"
	cron := path.Root("spec").AtName("maintenance_policy").AtName("windows").AtListIndex(0).AtName("cron")
	want := diag.Diagnostics{
		diag.NewAttributeErrorDiagnostic(path.Root("zone"), "Missing zone", "zone: is required: the zone of the cluster"+reason),
		diag.NewAttributeErrorDiagnostic(cron, "Invalid spec.maintenance_policy.windows[0].cron",
			`spec.maintenance_policy.windows[0].cron: "0 25 * * *" has a wrong hour`+reason),
		diag.NewErrorDiagnostic("Bad Request", "update_mask: is empty"+reason),
	}
	if got := testResource().explain(err); !got.Equal(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestErrorsAreTitledByTheirCode(t *testing.T) {
	for reason, want := range map[apierr.Reason]string{
		apierr.RunnerNotFound: "Not Found", apierr.ClusterTaken: "Already Exists", apierr.ETagMismatch: "Failed Precondition",
		apierr.Unauthenticated: "Unauthenticated", apierr.PermissionDenied: "Unauthorized", apierr.StorageFull: "Quota Exceeded",
		apierr.Internal: "Internal Error", apierr.InvalidRequest: "Bad Request", apierr.NotImplemented: "Not Implemented",
		apierr.BackendUnavailable: "Unavailable", apierr.CommandTimeout: "Deadline Exceeded", apierr.FileTooLarge: "Out of Range",
	} {
		diags := testResource().explain(apierr.Connect(apierr.New(reason, "what was wrong")))
		if len(diags) != 1 || diags[0].Summary() != want || !strings.Contains(diags[0].Detail(), string(reason)) {
			t.Errorf("%s: got %v, want title %q", reason, diags, want)
		}
	}
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		// UNKNOWN says nothing that a title could.
		if titles[code] == "" && code != connect.CodeUnknown {
			t.Errorf("%s has no title", code)
		}
	}
	if diags := testResource().explain(errors.New("broken")); diags[0].Summary() != "Unexpected Error" {
		t.Errorf("got %v", diags)
	}
	if diags := testResource().explain(connect.NewError(connect.CodeUnimplemented, errors.New("not here"))); diags[0].Detail() != "not here" {
		t.Errorf("got %v", diags)
	}
}

func TestAnErrorWithoutAFieldIsShownAtWhatItsReasonIsAbout(t *testing.T) {
	for reason, want := range map[apierr.Reason]string{
		apierr.ClusterNotFound: "cluster_id", apierr.ClusterTaken: "cluster_id", apierr.RunnerExists: "runner_id",
	} {
		diags := testResource().explain(apierr.Connect(apierr.New(reason, "what was wrong")))
		if len(diags) != 1 {
			t.Fatalf("%s: got %v, want one", reason, diags)
		}
		if at, ok := diags[0].(diag.DiagnosticWithPath); !ok || !at.Path().Equal(path.Root(want)) {
			t.Errorf("%s: got %v, want it at %s", reason, diags[0], want)
		}
	}
}
