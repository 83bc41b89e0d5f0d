package auth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is an auth.Store.
type memory struct {
	mu     sync.Mutex
	tokens map[string]auth.Token
	reads  int
}

func (m *memory) InsertToken(_ context.Context, token auth.Token, _ audit.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[token.TokenID] = token
	return nil
}

func (m *memory) Token(_ context.Context, id string) (auth.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	token, ok := m.tokens[id]
	if !ok {
		return auth.Token{}, auth.ErrTokenNotFound
	}
	return token, nil
}

func (m *memory) Tokens(context.Context, string) ([]auth.Token, error) { return nil, nil }

func (m *memory) RevokeToken(_ context.Context, organizationID, id string, entry audit.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	token, ok := m.tokens[id]
	if !ok || token.OrganizationID != organizationID {
		return auth.ErrTokenNotFound
	}
	token.RevokeTime = entry.Time
	m.tokens[id] = token
	return nil
}

func TestTokenWorksUntilItExpiresOrIsRevoked(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	store := &memory{tokens: map[string]auth.Token{}}
	tokens := auth.NewTokens(store, func() time.Time { return now }, nil)
	issue := func(expire time.Time) (auth.Token, auth.Secret) {
		token, secret, err := tokens.Create(t.Context(), auth.NewToken{OrganizationID: "org", UserID: "u", Role: auth.RoleUser, ExpireTime: expire})
		if err != nil {
			t.Fatal(err)
		}
		return token, secret
	}
	refused := func(name string, secret auth.Secret) {
		t.Helper()
		if _, err := tokens.Authenticate(t.Context(), secret); apierr.ReasonOf(err) != apierr.Unauthenticated {
			t.Errorf("%s: %v, want %s", name, err, apierr.Unauthenticated)
		}
	}

	token, secret := issue(time.Time{})
	for range 3 {
		if got, err := tokens.Authenticate(t.Context(), secret); err != nil || got.OrganizationID != "org" || got.Role != auth.RoleUser {
			t.Fatalf("Authenticate = %v, %v", got, err)
		}
	}
	if store.reads != 1 {
		t.Errorf("%d reads of the store for one token, want 1", store.reads)
	}
	refused("another secret for the same id", auth.Secret("CW-SECRET-"+token.TokenID+"-AAAA"))
	refused("no token at all", "hello")
	if err := tokens.Revoke(t.Context(), "other", token.TokenID); apierr.ReasonOf(err) != apierr.TokenNotFound {
		t.Errorf("another organization's revocation: %v", err)
	}
	if err := tokens.Revoke(t.Context(), "org", token.TokenID); err != nil {
		t.Fatal(err)
	}
	refused("revoked", secret)

	_, secret = issue(now.Add(time.Hour))
	now = now.Add(time.Hour)
	refused("expired", secret)
}

func TestSecretPrintsAsDots(t *testing.T) {
	secret := auth.Secret("CW-SECRET-a-b")
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", secret)
	printed := fmt.Sprintf("%s %v %q %#v", secret, secret, secret, secret) + log.String()
	if strings.Contains(printed, "CW-SECRET") {
		t.Errorf("printed as %s", printed)
	}
}

func TestEveryPublicProcedureHasARole(t *testing.T) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if file.Package() != "coreweave.sandbox.v1" && file.Package() != "sandbar.admin.v1" {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				procedure := fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(j).Name())
				if role, ok := auth.RequiredRole(procedure); !ok || role == auth.RoleNone {
					t.Errorf("%s is in no row of the table", procedure)
				}
			}
		}
		return true
	})
	if _, ok := auth.RequiredRole("/unknown.Service/Method"); ok {
		t.Error("an unknown procedure is allowed")
	}
}

func TestATokenThatCannotBeKeptIsRefused(t *testing.T) {
	store := &memory{tokens: map[string]auth.Token{}}
	tokens := auth.NewTokens(store, func() time.Time { return time.Unix(1_000_000, 0) }, nil)
	_, _, err := tokens.Create(t.Context(), auth.NewToken{
		OrganizationID: "org", UserID: strings.Repeat("u", 257), DisplayName: "a\x00b", Role: auth.RoleUser,
		ExpireTime: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	})
	var refusal *apierr.Error
	if !errors.As(err, &refusal) {
		t.Fatalf("Create = %v", err)
	}
	var fields []string
	for _, violation := range refusal.Violations() {
		fields = append(fields, violation.Field)
	}
	if got := strings.Join(fields, " "); got != "token.expire_time token.user_id token.display_name" {
		t.Errorf("violations of %s", got)
	}
	if len(store.tokens) > 0 {
		t.Errorf("stored %v", store.tokens)
	}
	service := auth.NewService(tokens)
	_, err = service.CreateToken(auth.WithPrincipal(t.Context(), auth.Principal{OrganizationID: "org"}), &adminv1.CreateTokenRequest{
		Token: &adminv1.Token{Role: adminv1.Role_ROLE_SANDBOX_USER, ExpireTime: timestamppb.New(time.Time{})},
	})
	if apierr.ReasonOf(err) != apierr.InvalidRequest {
		t.Errorf("a token that expired in the year 1: %v", err)
	}
}
