package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
)

// AuditStore is a store of changes that are told of.
type AuditStore interface {
	AuthStore
	audit.Store
}

// Audit is the suite of audit.Store. open makes an empty store that ends with
// the test.
func Audit(t *testing.T, open func(*testing.T) AuditStore) {
	entry := func(action, resource, user string) audit.Entry {
		return audit.Entry{OrganizationID: "org", Time: epoch.Add(time.Nanosecond), Action: action, Resource: resource, UserID: user}
	}
	change := func(t *testing.T, store AuditStore, entries ...audit.Entry) {
		t.Helper()
		for _, entry := range entries {
			token := auth.Token{TokenID: "token-" + entry.Action, OrganizationID: entry.OrganizationID, CreateTime: epoch}
			if err := store.InsertToken(t.Context(), token, entry); err != nil {
				t.Fatal(err)
			}
		}
	}
	listed := func(t *testing.T, store AuditStore, query audit.Query) (actions []string, last int64) {
		t.Helper()
		entries, err := store.AuditEntries(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			actions, last = append(actions, entry.Action), entry.AuditID
		}
		return actions, last
	}

	t.Run("an entry reads back as it was written with its change", func(t *testing.T) {
		store := open(t)
		organizations(t, store, "org")
		want := entry("CreateToken", "t1", "ada")
		want.TokenID, want.SourceAddress, want.Client = "t0", "203.0.113.7", "curl/8.0"
		want.After, want.Detail = []byte{1, 2}, `{"update_mask":["policy"]}`
		change(t, store, want)
		got, err := store.AuditEntries(t.Context(), audit.Query{OrganizationID: "org", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]audit.Entry{want}, got, cmpopts.IgnoreFields(audit.Entry{}, "AuditID"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("entries differ (-want +got):\n%s", diff)
		}
		if got[0].AuditID <= 0 {
			t.Errorf("the entry has the number %d", got[0].AuditID)
		}
	})

	t.Run("a change that fails is not told of", func(t *testing.T) {
		store := open(t)
		organizations(t, store, "org")
		change(t, store, entry("a", "r", "u"))
		if err := store.InsertToken(t.Context(), auth.Token{TokenID: "token-a", OrganizationID: "org"}, entry("b", "r", "u")); err == nil {
			t.Error("a token's id was taken twice")
		}
		if got, _ := listed(t, store, audit.Query{OrganizationID: "org", Limit: 10}); len(got) != 1 {
			t.Errorf("told of %v", got)
		}
	})

	t.Run("entries are listed by page, the newest first, each organization's own", func(t *testing.T) {
		store := open(t)
		organizations(t, store, "org", "other")
		foreign := entry("x", "r1", "ada")
		foreign.OrganizationID = "other"
		change(t, store, entry("a", "r1", "ada"), entry("b", "r2", "ada"), foreign, entry("c", "r1", "bob"), entry("d", "r1", "ada"))
		first, last := listed(t, store, audit.Query{OrganizationID: "org", Limit: 2})
		second, last := listed(t, store, audit.Query{OrganizationID: "org", Limit: 2, BeforeAuditID: last})
		third, _ := listed(t, store, audit.Query{OrganizationID: "org", Limit: 2, BeforeAuditID: last})
		if diff := cmp.Diff([][]string{{"d", "c"}, {"b", "a"}, nil}, [][]string{first, second, third}); diff != "" {
			t.Errorf("pages differ (-want +got):\n%s", diff)
		}
		if got, _ := listed(t, store, audit.Query{OrganizationID: "org", Resource: "r1", UserID: "ada", Limit: 10}); !cmp.Equal(got, []string{"d", "a"}) {
			t.Errorf("ada's changes of r1 are %v", got)
		}
	})
}
