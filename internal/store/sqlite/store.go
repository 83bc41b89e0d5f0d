package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlite/db"
)

var (
	_ auth.Store             = (*Store)(nil)
	_ auth.OrganizationStore = (*Store)(nil)
	_ fleet.Store            = (*Store)(nil)
	_ gateway.Store          = (*Store)(nil)
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// readers is how many connections read at the same time.
	readers = 8
	// busyTimeoutMillis is how long a connection waits for a lock that another
	// process holds: a backup, or the sqlite3 shell.
	busyTimeoutMillis = "10000"
)

// Store is one database. Its methods are safe for concurrent use.
type Store struct {
	// write has one connection, so that writers queue here and not in
	// SQLite's busy handler.
	write *sql.DB
	read  *sql.DB
}

// Open opens the database in that file, makes it when it is not there, and
// brings its schema up to date.
func Open(ctx context.Context, path string, logger *slog.Logger) (*Store, error) {
	if err := create(path); err != nil {
		return nil, err
	}
	write, err := open(path, "_txlock=immediate")
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1)
	write.SetMaxIdleConns(1)
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	if err := migrate(ctx, write, files, logger); err != nil {
		return nil, errors.Join(fmt.Errorf("bring the schema of %s up to date: %w", path, err), write.Close())
	}
	read, err := open(path, "_pragma=query_only(1)")
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	read.SetMaxOpenConns(readers)
	read.SetMaxIdleConns(readers)
	return &Store{write: write, read: read}, nil
}

// create makes an empty file that only its owner can read; SQLite gives the
// log beside it the same permissions.
func create(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return file.Close()
}

func open(path, option string) (*sql.DB, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	dsn := url.URL{Scheme: "file", Path: absolute, RawQuery: "_pragma=busy_timeout(" + busyTimeoutMillis + ")" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&" + option}
	handle, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return handle, nil
}

// migrate applies those of the files that have not been applied yet, each in a
// transaction of its own.
func migrate(ctx context.Context, handle *sql.DB, files fs.FS, logger *slog.Logger) error {
	provider, err := goose.NewProvider(goose.DialectSQLite3, handle, files)
	if err != nil {
		return err
	}
	results, err := provider.Up(ctx)
	for _, result := range results {
		logger.Info("applied migration", "file", result.Source.Path, "duration", result.Duration)
	}
	return err
}

// Close closes the database. Calls under way fail.
func (s *Store) Close() error {
	return errors.Join(s.read.Close(), s.write.Close())
}

// Ready answers nil when the database can be read.
func (s *Store) Ready(ctx context.Context) error {
	return classify("read the database", s.read.PingContext(ctx))
}

// reader runs queries outside of a transaction; each sees one snapshot.
func (s *Store) reader() *db.Queries { return db.New(s.read) }

// transaction runs fn and commits when it answers nil. Errors of the database
// are told with what was being done; fn's own pass as they are.
func (s *Store) transaction(ctx context.Context, operation string, fn func(*db.Queries) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return classify(operation, err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(db.New(tx)); err != nil {
		return classify(operation, err)
	}
	return classify(operation, tx.Commit())
}

// classify adds the operation, and says what to do about a full disk.
func classify(operation string, err error) error {
	if err == nil {
		return nil
	}
	var failure *sqlite.Error
	if !errors.As(err, &failure) {
		return fmt.Errorf("%s: %w", operation, err)
	}
	switch failure.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return apierr.New(apierr.StorageFull, "the server's disk is full and nothing was changed; free space on it and try again").
			Because(fmt.Errorf("%s: %w", operation, err))
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return apierr.New(apierr.BackendUnavailable, "the database is locked by another process and nothing was changed; try again").
			Because(fmt.Errorf("%s: %w", operation, err))
	}
	return fmt.Errorf("%s: %w", operation, err)
}
