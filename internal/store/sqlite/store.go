package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
	write    *sql.DB
	read     *sql.DB
	headroom *headroom
}

// Open opens the database in that file, makes it when it is not there, and
// brings its schema up to date.
func Open(ctx context.Context, path string, logger *slog.Logger) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	// Readable by the owner only; SQLite gives the log beside it the same
	// permissions. It is closed after all of SQLite's: see headroom.
	database, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s := &Store{}
	if err := s.open(ctx, database, logger); err != nil {
		return nil, errors.Join(err, s.Close(), database.Close())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, database *os.File, logger *slog.Logger) error {
	path := database.Name()
	s.write = open(path, "_txlock=immediate")
	s.write.SetMaxOpenConns(1)
	s.write.SetMaxIdleConns(1)
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	if err := migrate(ctx, s.write, files, logger); err != nil {
		return fmt.Errorf("bring the schema of %s up to date: %w", path, err)
	}
	s.read = open(path, "_pragma=query_only(1)")
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	s.headroom, err = openHeadroom(database, logger)
	return err
}

func open(path, option string) *sql.DB {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(" + busyTimeoutMillis + ")" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&" + option}
	return sql.OpenDB(connector{dsn: dsn.String(), driver: &sqlite.Driver{}})
}

// connector opens connections whose end leaves the log where it is, with the
// space that is reserved for it: a server has to start on a full disk, too.
type connector struct {
	dsn    string
	driver *sqlite.Driver
}

func (c connector) Driver() driver.Driver { return c.driver }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	const keep = 1
	if _, err := conn.(sqlite.FileControl).FileControlPersistWAL("main", keep); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the database's log: %w", err), conn.Close())
	}
	return conn, nil
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
	var errs []error
	for _, handle := range []*sql.DB{s.read, s.write} {
		if handle != nil {
			errs = append(errs, handle.Close())
		}
	}
	if s.headroom != nil {
		errs = append(errs, s.headroom.close())
	}
	return errors.Join(errs...)
}

// Ready answers nil when the database can be read.
func (s *Store) Ready(ctx context.Context) error {
	return classify("read the database", s.read.PingContext(ctx))
}

// reader runs queries outside of a transaction; each sees one snapshot.
func (s *Store) reader() *db.Queries { return db.New(s.read) }

// adding is a transaction that makes the database longer. It is refused when
// that would leave no room to delete something.
func (s *Store) adding(ctx context.Context, operation string, fn func(*db.Queries) error) error {
	err := s.headroom.ensure()
	if isFull(err) {
		return apierr.New(apierr.StorageFull,
			"the disk of the server's data directory is full, so nothing new is accepted and nothing was changed; "+
				"deleting sandboxes still works and frees what they wrote, and so does pruning images; or free space on that disk otherwise").
			Because(fmt.Errorf("%s: %w", operation, err))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return s.transaction(ctx, operation, fn)
}

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
		return apierr.New(apierr.StorageFull, "the disk of the server's data directory is full and nothing was changed; free space on it and try again").
			Because(fmt.Errorf("%s: %w", operation, err))
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return apierr.New(apierr.BackendUnavailable, "the database is locked by another process and nothing was changed; try again").
			Because(fmt.Errorf("%s: %w", operation, err))
	}
	return fmt.Errorf("%s: %w", operation, err)
}
