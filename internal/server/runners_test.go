package server

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
)

func (w *world) wish() *sandboxv1.ManagedRunner {
	return &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{RunnerId: "runner-1", Zone: "Zone-A", ClusterId: w.cluster.ClusterID},
		Policy:   &sandboxv1.Policy{},
	}
}

func (w *world) create(t *testing.T, runner *sandboxv1.ManagedRunner) *sandboxv1.ManagedRunner {
	t.Helper()
	created, err := w.runners(w.admin).CreateManagedRunner(t.Context(), &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: runner})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// rest makes one REST call and answers with its status and body.
func (w *world) rest(t *testing.T, secret auth.Secret, method, path, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret.Reveal())
	}
	response, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var decoded map[string]any
	if err := json.Unmarshal(data, &decoded); err != nil {
		t.Fatalf("%s %s answered %d with %q, which is not JSON", method, path, response.StatusCode, data)
	}
	return response.StatusCode, decoded
}

func TestCreateFillsInDefaultsAndAnswersWithTheWish(t *testing.T) {
	w := start(t, nil)
	created := w.create(t, w.wish())
	want := &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{
			RunnerId: "runner-1", RunnerGroupId: "default", Zone: "zone-a", ClusterId: w.cluster.ClusterID, ClusterName: "local",
		},
		Spec:              &sandboxv1.ManagedRunnerSpec{ReleaseChannel: sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE},
		Policy:            &sandboxv1.Policy{},
		InstallStatus:     sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_PENDING,
		ConnectionStatus:  sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_DISCONNECTED,
		TargetRevision:    1,
		RolloutInProgress: true,
		DeploymentSpec:    &sandboxv1.DeploymentSpec{GatewayServer: w.URL()},
	}
	diff := cmp.Diff(want, created, protocmp.Transform(), protocmp.IgnoreFields(want, "etag", "create_time", "update_time"))
	if diff != "" {
		t.Errorf("runner differs (-want +got):\n%s", diff)
	}
	if created.GetEtag() == "" || created.GetCreateTime() == nil {
		t.Errorf("etag %q, create time %v; want both", created.GetEtag(), created.GetCreateTime())
	}
}

func TestPresenceSurvivesTheStore(t *testing.T) {
	w := start(t, nil)
	zero, big := int64(0), int64(9007199254740993)
	wish := w.wish()
	wish.Policy = &sandboxv1.Policy{
		Constraints: &sandboxv1.PolicyConstraints{
			Resources: &sandboxv1.ResourceConstraints{MaxGpuCount: &zero},
			Metadata:  &sandboxv1.MetadataConstraints{MaxAnnotationCount: &big},
			Image:     &sandboxv1.ImageConstraints{},
		},
		ControlPlaneAccess: &sandboxv1.ControlPlaneAccessPolicy{SourceIpAllowlist: &sandboxv1.SourceIpAllowlist{}},
	}
	wish.Spec = &sandboxv1.ManagedRunnerSpec{
		EnforceResourceLimits: proto.Bool(false),
		DataPlane:             &sandboxv1.RunnerDataPlaneConfig{Exposure: &sandboxv1.RunnerDataPlaneConfig_Disabled{Disabled: &sandboxv1.RunnerDataPlaneDisabledConfig{}}},
	}
	w.create(t, wish)
	got, err := w.runners(w.admin, connect.WithProtoJSON()).GetManagedRunner(t.Context(), &sandboxv1.GetManagedRunnerRequest{RunnerId: "runner-1"})
	if err != nil {
		t.Fatal(err)
	}
	wish.Spec.ReleaseChannel = sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE
	if diff := cmp.Diff(wish.Policy, got.GetPolicy(), protocmp.Transform()); diff != "" {
		t.Errorf("policy differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wish.Spec, got.GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("spec differs (-want +got):\n%s", diff)
	}
}

func TestMaskedFieldThatIsAbsentIsReset(t *testing.T) {
	w := start(t, nil)
	wish := w.wish()
	wish.DisplayName = "name"
	wish.Identity.RunnerGroupId = "group"
	wish.Spec = &sandboxv1.ManagedRunnerSpec{
		ReleaseChannel: sandboxv1.ReleaseChannel_RELEASE_CHANNEL_RAPID,
		Volumes:        &sandboxv1.RunnerVolumesConfig{Enabled: proto.Bool(true)},
		TenantMetrics:  &sandboxv1.TenantMetricsConfig{Enabled: proto.Bool(true)},
	}
	created := w.create(t, wish)
	updated, err := w.runners(w.admin).UpdateManagedRunner(t.Context(), &sandboxv1.UpdateManagedRunnerRequest{
		RunnerId:      "runner-1",
		ManagedRunner: &sandboxv1.ManagedRunner{},
		UpdateMask:    &fieldmaskpb.FieldMask{Paths: []string{"display_name", "identity.runner_group_id", "spec.release_channel", "spec.volumes"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &sandboxv1.ManagedRunnerSpec{
		ReleaseChannel: sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE,
		TenantMetrics:  &sandboxv1.TenantMetricsConfig{Enabled: proto.Bool(true)},
	}
	if diff := cmp.Diff(want, updated.GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("spec differs (-want +got):\n%s", diff)
	}
	if updated.GetDisplayName() != "" || updated.GetIdentity().GetRunnerGroupId() != "default" {
		t.Errorf("display name %q and group %q, want both reset", updated.GetDisplayName(), updated.GetIdentity().GetRunnerGroupId())
	}
	if updated.GetEtag() != created.GetEtag() || updated.GetTargetRevision() != 1 {
		t.Errorf("etag or revision moved, but neither policy nor deployment changed")
	}
}

func TestETagChangesExactlyWhenThePolicyDoes(t *testing.T) {
	w := start(t, nil)
	created := w.create(t, w.wish())
	update := func(etag string, policy *sandboxv1.Policy) (*sandboxv1.ManagedRunner, error) {
		return w.runners(w.admin).UpdateManagedRunner(t.Context(), &sandboxv1.UpdateManagedRunnerRequest{
			RunnerId:      "runner-1",
			ManagedRunner: &sandboxv1.ManagedRunner{Etag: etag, Policy: policy},
			UpdateMask:    &fieldmaskpb.FieldMask{Paths: []string{"policy"}},
		})
	}
	same, err := update(created.GetEtag(), &sandboxv1.Policy{})
	if err != nil || same.GetEtag() != created.GetEtag() {
		t.Errorf("the same policy: etag %q, %v; want %q", same.GetEtag(), err, created.GetEtag())
	}
	changed, err := update(created.GetEtag(), &sandboxv1.Policy{DisplayName: "other"})
	if err != nil || changed.GetEtag() == created.GetEtag() {
		t.Errorf("another policy: etag %q, %v; want a new one", changed.GetEtag(), err)
	}
	_, err = update(created.GetEtag(), &sandboxv1.Policy{})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || apierr.ReasonOf(err) != apierr.ETagMismatch {
		t.Errorf("stale etag: %v, want FAILED_PRECONDITION %s", err, apierr.ETagMismatch)
	}
	_, err = update("", &sandboxv1.Policy{})
	if bad := apierr.BadRequest(err); len(bad.GetFieldViolations()) != 1 || bad.GetFieldViolations()[0].GetField() != "etag" {
		t.Errorf("no etag: %v, want one violation of etag", err)
	}
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("no etag: %v, want INVALID_ARGUMENT", err)
	}
}

func TestRevisionMovesOnlyWithTheDeployment(t *testing.T) {
	w := start(t, nil)
	w.create(t, w.wish())
	update := func(path string, spec *sandboxv1.ManagedRunnerSpec) *sandboxv1.ManagedRunner {
		t.Helper()
		updated, err := w.runners(w.admin).UpdateManagedRunner(t.Context(), &sandboxv1.UpdateManagedRunnerRequest{
			RunnerId:      "runner-1",
			ManagedRunner: &sandboxv1.ManagedRunner{Spec: spec},
			UpdateMask:    &fieldmaskpb.FieldMask{Paths: []string{path}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return updated
	}
	if got := update("spec.enforce_resource_limits", &sandboxv1.ManagedRunnerSpec{EnforceResourceLimits: proto.Bool(true)}); got.GetTargetRevision() != 1 {
		t.Errorf("a setting of sandboxes made revision %d", got.GetTargetRevision())
	}
	overrides := &sandboxv1.RunnerOverrides{Env: map[string]string{"TOKEN": "secret"}}
	got := update("spec.overrides", &sandboxv1.ManagedRunnerSpec{Overrides: overrides})
	if got.GetTargetRevision() != 2 {
		t.Errorf("an override made revision %d, want 2", got.GetTargetRevision())
	}
	if value := got.GetDeploymentSpec().GetEnv()["TOKEN"]; value == "secret" || value == "" {
		t.Errorf("the deployment shows the environment value as %q, want it masked", value)
	}
	if value := got.GetSpec().GetOverrides().GetEnv()["TOKEN"]; value != "secret" {
		t.Errorf("the spec shows the environment value as %q, want what was written", value)
	}
	if got := update("spec.overrides", &sandboxv1.ManagedRunnerSpec{Overrides: overrides}); got.GetTargetRevision() != 2 {
		t.Errorf("the same override again made revision %d, want 2", got.GetTargetRevision())
	}
}

func TestRequestIDMakesCreationIdempotent(t *testing.T) {
	w := start(t, nil)
	create := func(id string, change func(*sandboxv1.ManagedRunner)) (*sandboxv1.ManagedRunner, error) {
		wish := w.wish()
		if change != nil {
			change(wish)
		}
		return w.runners(w.admin).CreateManagedRunner(t.Context(), &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: wish, RequestId: id})
	}
	first, err := create("id-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := create("id-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Errorf("the retry's answer differs (-first +again):\n%s", diff)
	}
	_, err = create("id-1", func(r *sandboxv1.ManagedRunner) { r.DisplayName = "other" })
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("other input: %v, want INVALID_ARGUMENT", err)
	}
	_, err = create("id-2", nil)
	if apierr.ReasonOf(err) != apierr.RunnerExists {
		t.Errorf("another id: %v, want %s", err, apierr.RunnerExists)
	}
	_, err = create("id-3", func(r *sandboxv1.ManagedRunner) { r.Identity.RunnerId = "runner-2" })
	if apierr.ReasonOf(err) != apierr.ClusterTaken || !strings.Contains(err.Error(), "runner-1") {
		t.Errorf("taken cluster: %v, want %s that names runner-1", err, apierr.ClusterTaken)
	}
}

func TestRESTCarriesTheSameServices(t *testing.T) {
	w := start(t, nil)
	status, created := w.rest(t, w.admin, "POST", "/v1/sandbox/managedRunners?requestId=abc",
		`{"identity":{"runnerId":"runner-1","zone":"ZONE-A","clusterId":"`+w.cluster.ClusterID+`"},"policy":{"constraints":{"resources":{"maxGpuCount":"0"}}}}`)
	if status != http.StatusOK {
		t.Fatalf("create: %d %v", status, created)
	}
	status, got := w.rest(t, w.admin, "GET", "/v1/sandbox/managedRunners/runner-1", "")
	if status != http.StatusOK {
		t.Fatalf("get: %d %v", status, got)
	}
	want := map[string]any{"constraints": map[string]any{"resources": map[string]any{"maxGpuCount": "0"}}}
	if diff := cmp.Diff(want, got["policy"]); diff != "" {
		t.Errorf("policy differs (-want +got):\n%s", diff)
	}
	etag, _ := got["etag"].(string)
	status, got = w.rest(t, w.admin, "PATCH", "/v1/sandbox/managedRunners/runner-1?updateMask=policy,displayName",
		`{"displayName":"hello","etag":"`+etag+`","policy":{}}`)
	if status != http.StatusOK || got["displayName"] != "hello" {
		t.Errorf("update: %d %v", status, got)
	}
	status, got = w.rest(t, w.admin, "GET", "/v1/sandbox/managedRunners?pageSize=1&zone=ZONE-A", "")
	if runners, _ := got["managedRunners"].([]any); status != http.StatusOK || len(runners) != 1 {
		t.Errorf("list: %d %v, want one runner", status, got)
	}
	status, got = w.rest(t, w.admin, "POST", "/v1/sandbox/managedRunners/runner-1:applyAvailableUpdate", "")
	if status != http.StatusOK {
		t.Errorf("applyAvailableUpdate with nothing to apply: %d %v, want success", status, got)
	}
	status, _ = w.rest(t, w.admin, "DELETE", "/v1/sandbox/managedRunners/runner-9?allowMissing=true", "")
	if status != http.StatusOK {
		t.Errorf("delete of a missing runner: %d, want 200", status)
	}
	status, got = w.rest(t, w.admin, "PATCH", "/v1/sandbox/managedRunners/runner-1?updateMask=policy", `{"policyy":{}}`)
	if status != http.StatusBadRequest {
		t.Errorf("misspelt field: %d %v, want 400", status, got)
	}
}

func TestRESTErrorsAreStatusesWithDetails(t *testing.T) {
	w := start(t, nil)
	for _, test := range []struct {
		name               string
		secret             auth.Secret
		method, path, body string
		status             int
		reason             apierr.Reason
	}{
		{"no token", "", "GET", "/v1/sandbox/managedRunners/x", "", 401, apierr.Unauthenticated},
		{"wrong token", "CW-SECRET-aaaa-bbbb", "GET", "/v1/sandbox/managedRunners/x", "", 401, apierr.Unauthenticated},
		{"wrong role", w.user, "GET", "/v1/sandbox/managedRunners/x", "", 403, apierr.PermissionDenied},
		{"wrong role for a template", w.user, "POST", "/v1/sandboxTemplates", "{}", 403, apierr.PermissionDenied},
		{"unknown runner", w.admin, "GET", "/v1/sandbox/managedRunners/x", "", 404, apierr.RunnerNotFound},
		{"not built", w.user, "GET", "/v1/volumes", "", 501, apierr.NotImplemented},
		{"invalid", w.admin, "POST", "/v1/sandbox/managedRunners", "{}", 400, apierr.InvalidRequest},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, body := w.rest(t, test.secret, test.method, test.path, test.body)
			if status != test.status {
				t.Fatalf("status %d, want %d: %v", status, test.status, body)
			}
			details, _ := body["details"].([]any)
			if len(details) == 0 {
				t.Fatalf("no details in %v", body)
			}
			info, _ := details[0].(map[string]any)
			if info["@type"] != "type.googleapis.com/google.rpc.ErrorInfo" || info["domain"] != apierr.Domain || info["reason"] != string(test.reason) {
				t.Errorf("detail = %v, want ErrorInfo %s of %s", info, test.reason, apierr.Domain)
			}
		})
	}
	status, body := w.rest(t, "", "GET", "/nowhere", "")
	if status != http.StatusNotFound || body["code"] != float64(connect.CodeNotFound) {
		t.Errorf("unknown path: %d %v", status, body)
	}
}

func TestADryRunIsServedOverREST(t *testing.T) {
	w := start(t, nil)
	w.create(t, w.wish())
	body := `{"runnerId": "runner-1", "managedRunner": {"displayName": "new"}, "updateMask": "displayName,spec.overrides"}`
	status, answer := w.rest(t, w.admin, http.MethodPost, "/admin/v1/managedRunners:validate", body)
	if diff := cmp.Diff([]any{"display_name"}, answer["changedPaths"]); status != http.StatusOK || diff != "" {
		t.Errorf("%d %v, changed paths (-want +got):\n%s", status, answer, diff)
	}
	if status, answer := w.rest(t, w.user, http.MethodPost, "/admin/v1/managedRunners:validate", body); status != http.StatusForbidden {
		t.Errorf("a user's dry run: %d %v", status, answer)
	}
	_, stored := w.rest(t, w.admin, http.MethodGet, "/v1/sandbox/managedRunners/runner-1", "")
	if stored["displayName"] != nil {
		t.Errorf("the dry run stored the name %v", stored["displayName"])
	}
}

func TestAnswersToThoseWhoMayCallSayThatThisIsSandbar(t *testing.T) {
	w := start(t, nil)
	for secret, want := range map[auth.Secret]string{w.admin: "1.0.0", "wrong": ""} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+"/v1/sandbox/managedRunners", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret.Reveal())
		response, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := response.Header.Get("Sandbar-Version"); got != want {
			t.Errorf("status %d says version %q, want %q", response.StatusCode, got, want)
		}
	}
}
