// Package auth says who is calling and what they may do: API tokens, roles and
// the principal that handlers find in their context.
//
// Tokens are kept as hashes; a secret leaves this package once, when it is
// made. It must not import the domains it protects.
package auth

import (
	"context"
	"time"

	"github.com/sandbar-project/sandbar/internal/audit"
)

// Role is what a token allows.
type Role int

// The roles; each allows what the ones before it allow.
const (
	// RoleNone allows nothing.
	RoleNone Role = iota
	// RoleUser may create and operate sandboxes (SANDBOX_USER).
	RoleUser
	// RoleAdmin may also manage runners, clusters and tokens (SANDBOX_ADMIN).
	RoleAdmin
)

// Principal is an authenticated caller.
type Principal struct {
	OrganizationID string
	UserID         string
	TokenID        string
	Role           Role
	// SourceAddress is the IP address that the request came from, and Client
	// what it said of its program.
	SourceAddress string
	Client        string
}

// Entry begins an audit entry of what the caller does.
func (p Principal) Entry(at time.Time, action, resource string) audit.Entry {
	return audit.Entry{
		OrganizationID: p.OrganizationID,
		Time:           at,
		UserID:         p.UserID,
		TokenID:        p.TokenID,
		SourceAddress:  p.SourceAddress,
		Client:         p.Client,
		Action:         action,
		Resource:       resource,
	}
}

type principalKey struct{}

// WithPrincipal returns a context in which PrincipalFrom finds p.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the caller; ok is false when nobody was authenticated.
func PrincipalFrom(ctx context.Context) (p Principal, ok bool) {
	p, ok = ctx.Value(principalKey{}).(Principal)
	return p, ok
}
