package auth

import (
	"context"
	"errors"
	"time"

	"github.com/sandbar-project/sandbar/internal/audit"
)

// ErrTokenNotFound says that the store has no such token.
var ErrTokenNotFound = errors.New("token not found")

// HashSize is the length of a secret's hash in bytes (SHA-256).
const HashSize = 32

// Token is what is kept of an API token. Its secret is not.
type Token struct {
	TokenID        string
	OrganizationID string
	// UserID is who acts with the token.
	UserID      string
	DisplayName string
	Role        Role
	CreateTime  time.Time
	// ExpireTime is zero for a token that does not expire.
	ExpireTime time.Time
	// RevokeTime is zero while the token is not revoked.
	RevokeTime time.Time
	// Hash is the SHA-256 of the secret.
	Hash [HashSize]byte
}

// usable says why a token cannot be used now; empty when it can.
func (t Token) usable(now time.Time) string {
	switch {
	case !t.RevokeTime.IsZero():
		return "the token is revoked"
	case !t.ExpireTime.IsZero() && !now.Before(t.ExpireTime):
		return "the token has expired"
	}
	return ""
}

// Store keeps tokens. An accepted write survives a crash at any instant.
type Store interface {
	InsertToken(ctx context.Context, token Token, entry audit.Entry) error
	// Token answers ErrTokenNotFound when there is none of that id.
	Token(ctx context.Context, tokenID string) (Token, error)
	// Tokens lists those of one organization, oldest first, revoked ones
	// included.
	Tokens(ctx context.Context, organizationID string) ([]Token, error)
	// RevokeToken marks a token as revoked at the entry's time; when it is
	// already, nothing is written. It answers ErrTokenNotFound when the organization has none of that id.
	RevokeToken(ctx context.Context, organizationID, tokenID string, entry audit.Entry) error
}
