package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
)

// AuthStore is what auth declares.
type AuthStore interface {
	auth.Store
	auth.OrganizationStore
}

// Tokens is the suite of auth.Store and auth.OrganizationStore. open makes an
// empty store that ends with the test.
func Tokens(t *testing.T, open func(*testing.T) AuthStore) {
	t.Run("an organization is made once, however many ask at the same time", func(t *testing.T) {
		store := open(t)
		const callers = 8
		ids := make([]string, callers)
		inParallel(t, callers, func(i int) error {
			got, err := store.EnsureOrganization(context.WithoutCancel(t.Context()), auth.Organization{
				OrganizationID: string(rune('a' + i)), Name: "acme", CreateTime: epoch,
			})
			ids[i] = got.OrganizationID
			return err
		})
		if n := count(ids, ids[0]); n != callers {
			t.Errorf("answered with %v, want one id", ids)
		}
	})

	t.Run("a token reads back as it was inserted", func(t *testing.T) {
		store := open(t)
		organizations(t, store, "org")
		want := auth.Token{
			TokenID: "t1", OrganizationID: "org", UserID: "user", DisplayName: "ci", Role: auth.RoleAdmin,
			CreateTime: epoch, ExpireTime: epoch.Add(time.Hour), Hash: [auth.HashSize]byte{1, 2, 31: 3},
		}
		if err := store.InsertToken(t.Context(), want, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		got, err := store.Token(t.Context(), "t1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("token differs (-want +got):\n%s", diff)
		}
		if _, err := store.Token(t.Context(), "t2"); !errors.Is(err, auth.ErrTokenNotFound) {
			t.Errorf("unknown token: %v, want ErrTokenNotFound", err)
		}
	})

	t.Run("tokens are listed for their organization, oldest first", func(t *testing.T) {
		store := open(t)
		organizations(t, store, "org", "other")
		for i, token := range []auth.Token{
			{TokenID: "late", OrganizationID: "org", CreateTime: epoch.Add(time.Hour)},
			{TokenID: "early", OrganizationID: "org", CreateTime: epoch},
			{TokenID: "foreign", OrganizationID: "other", CreateTime: epoch},
		} {
			token.Hash[0] = byte(i)
			if err := store.InsertToken(t.Context(), token, audit.Entry{}); err != nil {
				t.Fatal(err)
			}
		}
		tokens, err := store.Tokens(t.Context(), "org")
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, token := range tokens {
			ids = append(ids, token.TokenID)
		}
		if diff := cmp.Diff([]string{"early", "late"}, ids); diff != "" {
			t.Errorf("tokens differ (-want +got):\n%s", diff)
		}
	})

	t.Run("a token is revoked once, by its own organization", func(t *testing.T) {
		store := open(t)
		organizations(t, store, "org", "other")
		if err := store.InsertToken(t.Context(), auth.Token{TokenID: "t1", OrganizationID: "org", CreateTime: epoch}, audit.Entry{OrganizationID: "org", Time: epoch}); err != nil {
			t.Fatal(err)
		}
		if err := store.RevokeToken(t.Context(), "other", "t1", audit.Entry{Time: epoch}); !errors.Is(err, auth.ErrTokenNotFound) {
			t.Errorf("another organization's revocation: %v, want ErrTokenNotFound", err)
		}
		for _, at := range []time.Time{epoch.Add(time.Minute), epoch.Add(time.Hour)} {
			if err := store.RevokeToken(t.Context(), "org", "t1", audit.Entry{OrganizationID: "org", Time: at}); err != nil {
				t.Fatal(err)
			}
		}
		got, err := store.Token(t.Context(), "t1")
		if err != nil || !got.RevokeTime.Equal(epoch.Add(time.Minute)) {
			t.Errorf("revoked at %s, %v; want the first time", got.RevokeTime, err)
		}
	})
}

func organizations(t *testing.T, store auth.OrganizationStore, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := store.EnsureOrganization(t.Context(), auth.Organization{OrganizationID: id, Name: id, CreateTime: epoch})
		if err != nil {
			t.Fatal(err)
		}
	}
}
