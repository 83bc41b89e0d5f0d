package server

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Each write through a door of the server is told of: who, from where, with
// which program, what it was from and to.
func TestEveryWriteLeavesAnAuditEntry(t *testing.T) {
	w := start(t, nil)
	send := func(method, path, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+w.admin.Reveal())
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("User-Agent", "platform/1.0\t(\u202e)")
		response, err := w.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s %s %v", method, path, response.Status, text, err)
		}
	}
	const runner = "/v1/sandbox/managedRunners/r"
	send("POST", "/v1/sandbox/managedRunners", `{"identity": {"runnerId": "r", "zone": "zone-a", "clusterId": "`+w.cluster.ClusterID+`"}}`)
	send("PATCH", runner+"?updateMask=displayName", `{"displayName": "new"}`)
	send("PATCH", runner+"?updateMask=displayName", `{"displayName": "new"}`)
	send("DELETE", runner, "")
	send("POST", "/admin/v1/tokens", `{"role": "ROLE_SANDBOX_USER", "userId": "bob"}`)

	entries := adminv1connect.NewAuditServiceClient(w.client, w.URL(), connect.WithClientOptions(bearer(w.admin)))
	listed, err := entries.ListAuditEntries(t.Context(), &adminv1.ListAuditEntriesRequest{Resource: "r", UserId: "someone"})
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for i, entry := range listed.GetAuditEntries() {
		actions = append(actions, entry.GetAction())
		if entry.GetSourceAddress() != "127.0.0.1" || entry.GetClient() != "platform/1.0()" || entry.GetTokenId() == "" {
			t.Errorf("%s is said to come from %q, with %q", entry.GetAction(), entry.GetSourceAddress(), entry.GetClient())
		}
		if i > 0 && entry.GetAfterDigest() != listed.GetAuditEntries()[i-1].GetBeforeDigest() {
			t.Errorf("%s ends with another state than the next begins with", entry.GetAction())
		}
	}
	// The second, equal update has changed nothing.
	if got := strings.Join(actions, " "); got != "DeleteManagedRunner UpdateManagedRunner CreateManagedRunner" {
		t.Errorf("told of %s", got)
	}
	update, err := json.Marshal(listed.GetAuditEntries()[1].GetDetail().AsMap())
	if err != nil || string(update) != `{"update_mask":["display_name"]}` {
		t.Errorf("the update's detail is %s, %v", update, err)
	}
	tokens, err := entries.ListAuditEntries(t.Context(), &adminv1.ListAuditEntriesRequest{PageSize: 1})
	if err != nil || tokens.GetNextPageToken() == "" || len(tokens.GetAuditEntries()) != 1 {
		t.Errorf("the newest entry: %v, %v", tokens, err)
	}
	if _, err := entries.ListAuditEntries(t.Context(), &adminv1.ListAuditEntriesRequest{Resource: "r", PageToken: tokens.GetNextPageToken()}); apierr.ReasonOf(err) != apierr.InvalidRequest {
		t.Errorf("a page token of another list: %v", err)
	}
	user := adminv1connect.NewAuditServiceClient(w.client, w.URL(), connect.WithClientOptions(bearer(w.user)))
	if _, err := user.ListAuditEntries(t.Context(), &adminv1.ListAuditEntriesRequest{}); apierr.ReasonOf(err) != apierr.PermissionDenied {
		t.Errorf("a user's look: %v", err)
	}
}
