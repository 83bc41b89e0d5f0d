// Package auth says who is calling and what they may do: API tokens, roles and
// the principal that handlers find in their context.
//
// Tokens are kept as hashes; a secret leaves this package once, when it is
// made. It must not import the domains it protects.
package auth

import "context"

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
