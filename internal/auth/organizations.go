package auth

import (
	"context"
	"time"
)

// Organization owns runners, sandboxes and tokens; nothing crosses from one to
// another.
type Organization struct {
	OrganizationID string
	// Name is unique.
	Name       string
	CreateTime time.Time
}

// OrganizationStore keeps organizations.
type OrganizationStore interface {
	// EnsureOrganization adds the organization, or answers with the one that
	// has its name already.
	EnsureOrganization(ctx context.Context, organization Organization) (Organization, error)
}
