package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/fieldrules"
)

const (
	secretPrefix = "CW-SECRET-"
	idBytes      = 10
	secretBytes  = 32
	// maxTextBytes bounds what names a token and its user.
	maxTextBytes = 256
	// cacheLimit bounds the memory that the cache takes; past it the cache
	// starts again empty.
	cacheLimit = 4096
)

// latestExpiry keeps times within what stores hold: nanoseconds in 64 bits.
var latestExpiry = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// Tokens issues, checks and revokes API tokens.
//
// A checked token is cached. Revocation goes through here too and empties the
// cache before it answers, so that a revoked token is refused at once.
type Tokens struct {
	store  Store
	now    func() time.Time
	random io.Reader

	mu    sync.Mutex
	cache map[string]Token
	// epoch counts revocations: what was read from the store before one must
	// not enter the cache after it.
	epoch uint64
}

// NewTokens makes the token service. random is the source of ids and secrets;
// nil means crypto/rand.
func NewTokens(store Store, now func() time.Time, random io.Reader) *Tokens {
	if random == nil {
		random = rand.Reader
	}
	return &Tokens{store: store, now: now, random: random, cache: map[string]Token{}}
}

// NewToken is the wish for a token.
type NewToken struct {
	OrganizationID string
	UserID         string
	DisplayName    string
	Role           Role
	// ExpireTime is zero for a token that does not expire.
	ExpireTime time.Time
}

// Create issues a token. The secret, of the form CW-SECRET-<id>-<random>, is
// not kept: this is the only time that it can be seen.
func (t *Tokens) Create(ctx context.Context, wish NewToken) (Token, Secret, error) {
	var violations []apierr.Violation
	if wish.Role != RoleUser && wish.Role != RoleAdmin {
		violations = append(violations, apierr.Violation{
			Field: "token.role", Description: "must be ROLE_SANDBOX_USER or ROLE_SANDBOX_ADMIN", Reason: "ROLE",
		})
	}
	now := t.now()
	if wish.ExpireTime.After(latestExpiry) {
		violations = append(violations, apierr.Violation{
			Field: "token.expire_time", Description: "must be before the year 2200; leave it out for a token that does not expire", Reason: "EXPIRE_TIME",
		})
	}
	for _, text := range []struct{ field, value string }{{"token.user_id", wish.UserID}, {"token.display_name", wish.DisplayName}} {
		if len(text.value) > maxTextBytes {
			violations = append(violations, apierr.Violation{
				Field: text.field, Description: fmt.Sprintf("has %d bytes; use at most %d", len(text.value), maxTextBytes), Reason: "LENGTH",
			})
		}
		if character, found := fieldrules.Hidden(text.value); found {
			violations = append(violations, apierr.Violated(text.field, "CHARACTERS", "has the character %U, which does not show; leave it out", character))
		}
	}
	if !wish.ExpireTime.IsZero() && !wish.ExpireTime.After(now) {
		violations = append(violations, apierr.Violation{
			Field: "token.expire_time", Description: "must be in the future; leave it out for a token that does not expire", Reason: "EXPIRE_TIME",
		})
	}
	if err := apierr.Invalid(apierr.InvalidRequest, violations); err != nil {
		return Token{}, "", err
	}

	material := make([]byte, idBytes+secretBytes)
	if _, err := io.ReadFull(t.random, material); err != nil {
		return Token{}, "", fmt.Errorf("read random bytes for a token: %w", err)
	}
	id := strings.ToLower(encoding.EncodeToString(material[:idBytes]))
	secret := Secret(secretPrefix + id + "-" + encoding.EncodeToString(material[idBytes:]))
	token := Token{
		TokenID:        id,
		OrganizationID: wish.OrganizationID,
		UserID:         wish.UserID,
		DisplayName:    wish.DisplayName,
		Role:           wish.Role,
		CreateTime:     now,
		ExpireTime:     wish.ExpireTime,
		Hash:           sha256.Sum256([]byte(secret)),
	}
	entry := entry(ctx, token.OrganizationID, now, "CreateToken", id)
	entry.After = audit.Digest(describe(token))
	if err := t.store.InsertToken(ctx, token, entry); err != nil {
		return Token{}, "", fmt.Errorf("store token %s: %w", id, err)
	}
	return token, secret, nil
}

// List lists the organization's tokens, oldest first.
func (t *Tokens) List(ctx context.Context, organizationID string) ([]Token, error) {
	return t.store.Tokens(ctx, organizationID)
}

// Revoke ends a token at once; revoking it again succeeds.
func (t *Tokens) Revoke(ctx context.Context, organizationID, tokenID string) error {
	err := t.store.RevokeToken(ctx, organizationID, tokenID, entry(ctx, organizationID, t.now(), "RevokeToken", tokenID))
	t.mu.Lock()
	t.epoch++
	delete(t.cache, tokenID)
	t.mu.Unlock()
	if errors.Is(err, ErrTokenNotFound) {
		return apierr.New(apierr.TokenNotFound, "there is no token %q in this organization; list the tokens to see their ids", tokenID)
	}
	if err != nil {
		return fmt.Errorf("revoke token %s: %w", tokenID, err)
	}
	return nil
}

// entry tells of what the caller does, or the server by itself when there is
// none.
func entry(ctx context.Context, organizationID string, at time.Time, action, tokenID string) audit.Entry {
	caller, _ := PrincipalFrom(ctx)
	entry := caller.Entry(at, action, tokenID)
	entry.OrganizationID = organizationID
	return entry
}

// Authenticate says who acts with the secret. What is wrong with one that is
// refused is told only when the secret itself was right.
func (t *Tokens) Authenticate(ctx context.Context, secret Secret) (Principal, error) {
	id, ok := tokenID(secret.Reveal())
	if !ok {
		return Principal{}, invalid()
	}
	token, err := t.lookup(ctx, id)
	if errors.Is(err, ErrTokenNotFound) {
		return Principal{}, invalid()
	}
	if err != nil {
		return Principal{}, fmt.Errorf("look up token %s: %w", id, err)
	}
	hash := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(hash[:], token.Hash[:]) != 1 {
		return Principal{}, invalid()
	}
	if why := token.usable(t.now()); why != "" {
		return Principal{}, apierr.New(apierr.Unauthenticated, "%s; ask an administrator for a new one", why)
	}
	return Principal{
		OrganizationID: token.OrganizationID,
		UserID:         token.UserID,
		TokenID:        token.TokenID,
		Role:           token.Role,
	}, nil
}

func (t *Tokens) lookup(ctx context.Context, id string) (Token, error) {
	t.mu.Lock()
	token, ok := t.cache[id]
	epoch := t.epoch
	t.mu.Unlock()
	if ok {
		return token, nil
	}
	token, err := t.store.Token(ctx, id)
	if err != nil {
		return Token{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == epoch {
		if len(t.cache) >= cacheLimit {
			clear(t.cache)
		}
		t.cache[id] = token
	}
	return token, nil
}

// tokenID takes the id out of CW-SECRET-<id>-<random>.
func tokenID(secret string) (string, bool) {
	rest, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		return "", false
	}
	id, random, ok := strings.Cut(rest, "-")
	return id, ok && id != "" && random != ""
}

func invalid() error {
	return apierr.New(apierr.Unauthenticated, "the token is not valid; check COREWEAVE_API_TOKEN or CWSANDBOX_API_KEY, or ask an administrator for a new one")
}
