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
	"github.com/sandbar-project/sandbar/internal/store/sqlstore"
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

// Store is a database in a file, with room to delete what is in it.
type Store struct {
	*sqlstore.Store
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
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, errors.Join(err, database.Close())
	}
	write := open(path, "_txlock=immediate")
	// Writers queue here and not in SQLite's busy handler.
	write.SetMaxOpenConns(1)
	write.SetMaxIdleConns(1)
	if err := migrate(ctx, write, files, logger); err != nil {
		return nil, errors.Join(fmt.Errorf("bring the schema of %s up to date: %w", path, err), write.Close(), database.Close())
	}
	read := open(path, "_pragma=query_only(1)")
	read.SetMaxOpenConns(readers)
	read.SetMaxIdleConns(readers)
	headroom, err := openHeadroom(database, logger)
	if err != nil {
		return nil, errors.Join(err, read.Close(), write.Close(), database.Close())
	}
	return &Store{Store: sqlstore.New(dialect(headroom.admit), write, read), headroom: headroom}, nil
}

// OpenBeside opens the database in a file that a server may use at the same
// time, to read it as it is.
func OpenBeside(path string) (*sqlstore.Store, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	read := open(path, "mode=ro&_pragma=query_only(1)")
	return sqlstore.New(dialect(nil), read, read), nil
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
		logger.InfoContext(ctx, "applied migration", "file", result.Source.Path, "duration", result.Duration)
	}
	return err
}

// Close closes the database. Calls under way fail.
func (s *Store) Close() error {
	return errors.Join(s.Store.Close(), s.headroom.close())
}

func dialect(admit func() error) sqlstore.Dialect {
	return sqlstore.Dialect{Admit: admit, Refusal: refusal, OrderedJoin: "CROSS JOIN"}
}

func refusal(err error) *apierr.Error {
	var failure *sqlite.Error
	if !errors.As(err, &failure) {
		return nil
	}
	switch failure.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return apierr.New(apierr.StorageFull, "the disk of the server's data directory is full and nothing was changed; free space on it and try again")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return apierr.New(apierr.BackendUnavailable, "the database is locked by another process and nothing was changed; try again")
	}
	return nil
}
