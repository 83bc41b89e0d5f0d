package storetest

import (
	"embed"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

//go:embed testdata/filled_*.sql
var filled embed.FS

// Filled is SQL, as SQLite reads it, that fills a database whose schema is at
// that version: at least one row in every table. A schema that servers have had
// needs one.
func Filled(t *testing.T, version int64) string {
	t.Helper()
	content, err := filled.ReadFile(fmt.Sprintf("testdata/filled_%05d.sql", version))
	if err != nil {
		t.Fatalf("a schema that servers have had needs a filled database: %v", err)
	}
	return string(content)
}

// CheckFilled reads what every Filled has.
func CheckFilled(t *testing.T, store ArchiveStore) {
	t.Helper()
	ctx := t.Context()
	key := gateway.RunnerKey{OrganizationID: "org", RunnerID: "runner-1"}
	runner, err := store.Runner(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	none := int64(0)
	wantPolicy := &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Resources: &sandboxv1.ResourceConstraints{MaxCpu: "8", MaxGpuCount: &none}}}
	if diff := cmp.Diff(wantPolicy, runner.Policy, protocmp.Transform()); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	if runner.DisplayName != "First" || runner.ETag != "etag-1" || runner.TargetRevision != 2 || runner.ActiveRevision != 1 ||
		runner.Phase != fleet.PhaseReady || !slices.Equal(runner.Spec.GetOverrides().GetArgs(), []string{"--log-level=debug"}) {
		t.Errorf("runner = %+v", runner)
	}
	if revision, err := store.Revision(ctx, key, 1); err != nil || revision.Version != "1.0.0" || revision.Author != "ada" {
		t.Errorf("revision = %+v, %v", revision, err)
	}
	hash := [32]byte(slices.Repeat([]byte{10}, 32))
	if credential, err := store.Credential(ctx, fleet.CredentialSession, hash); err != nil || credential.RunnerKey != key {
		t.Errorf("credential = %+v, %v", credential, err)
	}
	tokens, err := store.Tokens(ctx, "org")
	if err != nil || len(tokens) != 2 || tokens[0].UserID != "ada" || tokens[1].RevokeTime.IsZero() {
		t.Errorf("tokens = %+v, %v", tokens, err)
	}
	live, err := store.SandboxByRequest(ctx, "org", "request-2")
	if err != nil || live.SandboxID != "sb-1" || !slices.Equal(live.Spec.GetTags(), []string{"a", "b"}) || live.Status.GetState() != sandboxv1.State_STATE_RUNNING {
		t.Errorf("the live sandbox = %+v, %v", live, err)
	}
	ended, err := store.Sandbox(ctx, "org", "sb-2")
	if err != nil || ended.Status.ExitCode == nil || ended.Generation != 4 || !ended.TerminateRequested || ended.EndTime.IsZero() {
		t.Errorf("the ended sandbox = %+v, %v", ended, err)
	}
	tagged, err := store.Sandboxes(ctx, gateway.ListQuery{OrganizationID: "org", Tags: []string{"b"}, IncludeEnded: true, Limit: 10})
	if err != nil || len(tagged) != 2 {
		t.Errorf("tagged = %v, %v", tagged, err)
	}
	held, err := store.Sandboxes(ctx, gateway.ListQuery{OrganizationID: "org", VolumeIDs: []string{"volume-1"}, Limit: 10})
	if err != nil || len(held) != 1 {
		t.Errorf("with the volume = %v, %v", held, err)
	}
	// And it is written to.
	changed, err := store.ChangeSandbox(ctx, "org", "sb-1", func(r *gateway.Record) bool { r.Generation++; return true })
	if err != nil || changed.Generation != 2 {
		t.Errorf("changed = %+v, %v", changed, err)
	}
}
