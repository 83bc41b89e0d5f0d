package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// connections is how many a server uses at most.
	connections = 16
	// lockSpace keeps Sandbar's advisory locks apart from others' in the same
	// database.
	lockSpace = 0x53414e44
	// ownerLock is held for as long as a process uses the database.
	ownerLock = 1
	// ownerPatience is how long a start waits for the end of a server before it.
	ownerPatience = 30 * time.Second
)

// Store is a database that no other server uses.
type Store struct {
	*sqlstore.Store
	handle *sql.DB

	mu sync.Mutex
	// owner is the connection that holds the lock.
	owner *sql.Conn
}

// Open connects to the database that the URL names, as libpq writes it
// (postgres://user@host:5432/name?sslmode=verify-full), and brings its schema
// up to date. A database that another server uses is refused.
func Open(ctx context.Context, databaseURL string, logger *slog.Logger) (*Store, error) {
	config, handle, err := connect(databaseURL)
	if err != nil {
		return nil, err
	}
	owner, err := own(ctx, handle)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s on %s: %w", config.Database, config.Host, err), handle.Close())
	}
	if err := migrate(ctx, handle, logger); err != nil {
		return nil, errors.Join(fmt.Errorf("bring the schema of database %s up to date: %w", config.Database, err), owner.Close(), handle.Close())
	}
	return &Store{Store: sqlstore.New(dialect(), handle, handle), handle: handle, owner: owner}, nil
}

// OpenBeside connects to a database that a server may use at the same time, to
// read it as it is.
func OpenBeside(ctx context.Context, databaseURL string) (*sqlstore.Store, error) {
	config, handle, err := connect(databaseURL)
	if err != nil {
		return nil, err
	}
	if err := handle.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s on %s: %w", config.Database, config.Host, err), handle.Close())
	}
	return sqlstore.New(dialect(), handle, handle), nil
}

func connect(databaseURL string) (*pgx.ConnConfig, *sql.DB, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		// pgx leaves the password out of what it quotes.
		return nil, nil, fmt.Errorf("open database: %w", err)
	}
	config.RuntimeParams["application_name"] = "sandbar"
	config.RuntimeParams["synchronous_commit"] = "on"
	// The database notices within half a minute that a server's machine is gone.
	config.RuntimeParams["tcp_keepalives_idle"] = "10"
	config.RuntimeParams["tcp_keepalives_interval"] = "5"
	config.RuntimeParams["tcp_keepalives_count"] = "3"
	handle := stdlib.OpenDB(*config)
	handle.SetMaxOpenConns(connections)
	handle.SetMaxIdleConns(connections)
	return config, handle, nil
}

// own takes the database for this process. The lock ends with its connection;
// that of a server that was killed may take a moment to.
func own(ctx context.Context, handle *sql.DB) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	conn, err := handle.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1, $2)", lockSpace, ownerLock); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errOwned, err)
		}
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

var errOwned = errors.New("another server uses it; one server at a time may")

// migrate applies those of the files that have not been applied yet, each in a
// transaction of its own.
func migrate(ctx context.Context, handle *sql.DB, logger *slog.Logger) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, handle, files)
	if err != nil {
		return err
	}
	results, err := provider.Up(ctx)
	for _, result := range results {
		logger.InfoContext(ctx, "applied migration", "file", result.Source.Path, "duration", result.Duration)
	}
	return err
}

// Ready answers nil when the database can be read and is this process's still.
// The lock is lost with its connection, when the database restarts: it is then
// taken again.
func (s *Store) Ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner.PingContext(ctx) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	owner, err := own(ctx, s.handle)
	if err != nil {
		return fmt.Errorf("take the database again: %w", err)
	}
	// The connection is broken: so is its end.
	_ = s.owner.Close()
	s.owner = owner
	return nil
}

// Close closes the database. Calls under way fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.owner.Close(), s.Store.Close())
}

func dialect() sqlstore.Dialect {
	return sqlstore.Dialect{
		Lock:        lock,
		Refusal:     refusal,
		Snapshot:    sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
		OrderedJoin: "JOIN",
	}
}

// lock waits for a lock that ends with the transaction. Two keys of one hash
// only wait for each other.
func lock(ctx context.Context, tx *sql.Tx, key string) error {
	_, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, $2))", key, lockSpace)
	return err
}

// The classes and codes of errors of which the caller is told what to do.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	diskFull             = "53100"
	readOnlyTransaction  = "25006"
	connectionClass      = "08"
	resourcesClass       = "53"
	operatorIntervention = "57P"
)

func refusal(err error) *apierr.Error {
	unavailable := func() *apierr.Error {
		return apierr.New(apierr.BackendUnavailable, "the server's database cannot be used now, and whether this was stored is not known; look at what is there and try again")
	}
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		if failure.Code == diskFull {
			return apierr.New(apierr.StorageFull, "the disk of the server's database is full and nothing was changed; free space on it and try again")
		}
		for _, prefix := range []string{readOnlyTransaction, connectionClass, resourcesClass, operatorIntervention} {
			if strings.HasPrefix(failure.Code, prefix) {
				return unavailable()
			}
		}
		return nil
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	if errors.As(err, &connecting) || (errors.As(err, &network) && !errors.Is(err, context.DeadlineExceeded)) {
		return unavailable()
	}
	return nil
}
