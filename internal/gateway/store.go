package gateway

import (
	"context"
	"errors"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// ErrSandboxNotFound says that the store has no such sandbox in that organization.
var ErrSandboxNotFound = errors.New("sandbox not found")

// Record is a sandbox as the store keeps it.
type Record struct {
	SandboxID      string
	OrganizationID string
	UserID         string
	RunnerID       string
	// RequestID and RequestDigest make creation idempotent; empty when the
	// caller gave none.
	RequestID     string
	RequestDigest []byte
	Spec          *sandboxv1.SandboxSpec
	Status        *sandboxv1.SandboxStatus
	// Generation is of the newest runner record that was applied.
	Generation int64
	CreateTime time.Time
	// EndTime is zero while the sandbox is live.
	EndTime time.Time
	// TerminateRequested: the user has asked for its end, so that its last
	// state is TERMINATED, whatever its processes said. Never reset.
	TerminateRequested bool
}

// ListQuery selects sandboxes; conditions are joined by AND.
type ListQuery struct {
	OrganizationID string
	// Tags must all be present.
	Tags []string
	// State: unspecified means any.
	State sandboxv1.State
	// IncludeEnded adds sandboxes in a terminal state.
	IncludeEnded bool
	// RunnerIDs and VolumeIDs: empty means any.
	RunnerIDs []string
	VolumeIDs []string
	// AfterCreateTime and AfterSandboxID are the last row of the page before
	// (newest first); zero for the first page.
	AfterCreateTime time.Time
	AfterSandboxID  string
	Limit           int
}

// Store keeps sandboxes. An accepted write survives a crash at any instant.
type Store interface {
	// InsertSandbox adds a sandbox. When the organization has used the same
	// RequestID before, it adds nothing and answers with that earlier record
	// and inserted=false.
	InsertSandbox(ctx context.Context, record *Record) (stored *Record, inserted bool, err error)
	// SandboxByRequest answers with the sandbox that the organization created
	// with that RequestID (never empty), or ErrSandboxNotFound. A repeated
	// request is answered before a place is looked for, which may have run out
	// since.
	SandboxByRequest(ctx context.Context, organizationID, requestID string) (*Record, error)
	// Sandbox answers ErrSandboxNotFound when there is none.
	Sandbox(ctx context.Context, organizationID, sandboxID string) (*Record, error)
	// Sandboxes lists, newest first by (create time, id).
	Sandboxes(ctx context.Context, query ListQuery) ([]*Record, error)
	// LiveSandboxes lists those of one runner that have not ended.
	LiveSandboxes(ctx context.Context, key RunnerKey) ([]*Record, error)
	// ChangeSandbox reads a record, lets change edit Status, Generation,
	// EndTime and TerminateRequested, and writes it, in one transaction. When
	// change answers false nothing is written, and the record is returned as it
	// stands. It answers ErrSandboxNotFound when there is none.
	ChangeSandbox(ctx context.Context, organizationID, sandboxID string, change func(*Record) bool) (*Record, error)
	// DeleteSandboxesEndedBefore forgets ended sandboxes and says how many.
	DeleteSandboxesEndedBefore(ctx context.Context, before time.Time) (int64, error)
}
