// Package audit is the log of who changed what: its rows, and the service that
// shows them.
//
// A row is written in the transaction of the change that it tells of, so there
// is none without the other. Rows are never changed, and outlive what they tell
// of. It must not import the domains whose changes it tells.
package audit

import (
	"context"
	"crypto/sha256"
	"time"

	"google.golang.org/protobuf/proto"
)

// Entry is one row: who did what to which resource, when and from where.
type Entry struct {
	// AuditID numbers the rows of a database in their order; given by the store.
	AuditID        int64
	OrganizationID string
	Time           time.Time
	// UserID and TokenID are empty for what the server did by itself.
	UserID  string
	TokenID string
	// SourceAddress is the IP address that the request came from, and Client what
	// it said of its program (User-Agent); empty for what the server did by
	// itself.
	SourceAddress string
	Client        string
	// Action is a method's name, or what the server did by itself.
	Action string
	// Resource is the id of what was changed.
	Resource string
	// Before and After are SHA-256 of what a caller declares of the resource; nil
	// when it was not there. Equal ones mean that nothing declared has changed.
	Before []byte
	After  []byte
	// Detail is JSON without secrets; may be empty.
	Detail string
}

// Query selects rows, the newest first; empty conditions mean any.
type Query struct {
	OrganizationID string
	Resource       string
	UserID         string
	// BeforeAuditID is the last row of the page before; 0 for the first page.
	BeforeAuditID int64
	Limit         int
}

// Store keeps the rows that others write with their changes.
type Store interface {
	AuditEntries(ctx context.Context, query Query) ([]Entry, error)
}

// Digest tells two states of a resource apart without keeping either.
func Digest(declared proto.Message) []byte {
	// Only messages with invalid UTF-8 fail, which come over no wire.
	data, _ := proto.MarshalOptions{Deterministic: true}.Marshal(declared)
	sum := sha256.Sum256(data)
	return sum[:]
}
