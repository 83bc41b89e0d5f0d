package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

var (
	_ audit.Store            = (*Store)(nil)
	_ auth.Store             = (*Store)(nil)
	_ auth.OrganizationStore = (*Store)(nil)
	_ fleet.Store            = (*Store)(nil)
	_ gateway.Store          = (*Store)(nil)
)

// Dialect is what sets one database apart from another.
type Dialect struct {
	// Begin is asked first in every transaction that writes. Nil: there is nothing
	// to ask.
	Begin func(ctx context.Context, tx *sql.Tx) error
	// Lock makes every other transaction that locks the same key wait until tx
	// has ended. Nil: write runs one transaction at a time.
	Lock func(ctx context.Context, tx *sql.Tx, key string) error
	// Admit answers nil when there is room to add something. Nil: there always
	// is, as far as is known.
	Admit func() error
	// Refusal is what a caller is told of an error of the database that it can
	// do something about; nil for every other error.
	Refusal func(error) *apierr.Error
	// Snapshot begins a transaction that reads what was committed at one instant.
	Snapshot sql.TxOptions
	// OrderedJoin joins two tables so that the answer comes in the order of the
	// left one's index.
	OrderedJoin string
}

// Store is one database. Its methods are safe for concurrent use.
type Store struct {
	dialect Dialect
	write   *sql.DB
	read    *sql.DB
}

// New makes a store of a database whose schema is up to date, and owns the two
// handles from then on; they may be the same.
func New(dialect Dialect, write, read *sql.DB) *Store {
	return &Store{dialect: dialect, write: write, read: read}
}

// Close closes the database. Calls under way fail.
func (s *Store) Close() error {
	return errors.Join(s.read.Close(), s.write.Close())
}

// Ready answers nil when the database can be read.
func (s *Store) Ready(ctx context.Context) error {
	return s.explain("read the database", s.read.PingContext(ctx))
}

// reader runs queries outside of a transaction; each sees one snapshot.
func (s *Store) reader() *db.Queries { return db.New(s.read) }

// Keys of locks. Each transaction takes at most one, so none waits for another
// in a circle.
func organizationLock(organizationID string) string { return "organization/" + organizationID }

func tokenLock(tokenID string) string { return "token/" + tokenID }
func runnerLock(key gateway.RunnerKey) string {
	return "runner/" + key.OrganizationID + "/" + key.RunnerID
}

func sandboxLock(organizationID, sandboxID string) string {
	return "sandbox/" + organizationID + "/" + sandboxID
}

func requestLock(organizationID, requestID string) string {
	return "request/" + organizationID + "/" + requestID
}

// noLock is for a write that depends on nothing that it reads.
const noLock = ""

// adding is a transaction that adds to what there is.
func (s *Store) adding(ctx context.Context, operation, lock string, fn func(*db.Queries) error) error {
	if s.dialect.Admit != nil {
		if err := s.dialect.Admit(); err != nil {
			return fmt.Errorf("%s: %w", operation, err)
		}
	}
	return s.transaction(ctx, operation, lock, fn)
}

// transaction runs fn, alone among those with the same lock, and commits when
// it answers nil.
func (s *Store) transaction(ctx context.Context, operation, lock string, fn func(*db.Queries) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return s.explain(operation, err)
	}
	defer func() { _ = tx.Rollback() }()
	if s.dialect.Begin != nil {
		if err := s.dialect.Begin(ctx, tx); err != nil {
			return s.explain(operation, err)
		}
	}
	if lock != noLock && s.dialect.Lock != nil {
		if err := s.dialect.Lock(ctx, tx, lock); err != nil {
			return s.explain(operation, err)
		}
	}
	if err := fn(db.New(tx)); err != nil {
		return s.explain(operation, err)
	}
	return s.explain(operation, tx.Commit())
}

// explain adds the operation, and what can be done where something can.
func (s *Store) explain(operation string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", operation, err)
	if refusal := s.dialect.Refusal(err); refusal != nil {
		return refusal.Because(err)
	}
	return err
}
