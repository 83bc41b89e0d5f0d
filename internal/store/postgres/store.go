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

	"github.com/google/uuid"
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

	// token is what the database says of its owner while that is this store.
	token string
	// watching ends with stop.
	watching sync.WaitGroup
	stop     context.CancelFunc

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
	s := &Store{handle: handle, token: uuid.NewString()}
	if s.owner, err = s.own(ctx, takeOver); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s on %s: %w", config.Database, config.Host, err), handle.Close())
	}
	if err := migrate(ctx, handle, logger); err != nil {
		return nil, errors.Join(fmt.Errorf("bring the schema of database %s up to date: %w", config.Database, err), s.owner.Close(), handle.Close())
	}
	s.Store = sqlstore.New(s.dialect(), handle, handle)
	watching, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.watching.Go(func() { s.watch(watching, logger) })
	return s, nil
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

// ownership says what a store does that finds another's mark in the database.
type ownership bool

const (
	// takeOver: whoever left the mark is gone, since its lock is.
	takeOver ownership = true
	// takeBack: another has used the database since, and what this process knows
	// of it is not true any more.
	takeBack ownership = false
)

// own takes the database for this process: a lock, which ends with its
// connection and keeps others from starting, and a mark, which every write looks
// at. The lock of a server that was killed may take a moment to end.
func (s *Store) own(ctx context.Context, how ownership) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	conn, err := s.handle.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1, $2)", lockSpace, ownerLock); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errOwned, err)
		}
		return nil, errors.Join(err, conn.Close())
	}
	if err := s.mark(ctx, conn, how); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// mark writes that the database is this store's.
func (s *Store) mark(ctx context.Context, conn *sql.Conn, how ownership) error {
	if how == takeBack {
		var owner string
		if err := conn.QueryRowContext(ctx, "SELECT owner FROM server_owner").Scan(&owner); err != nil {
			return err
		}
		if owner != s.token {
			return errOwned
		}
		return nil
	}
	if _, err := conn.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS server_owner (
		singleton BOOLEAN NOT NULL PRIMARY KEY DEFAULT true CHECK (singleton), owner TEXT NOT NULL)`); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, "INSERT INTO server_owner (owner) VALUES ($1) ON CONFLICT (singleton) DO UPDATE SET owner = excluded.owner", s.token)
	return err
}

// fence refuses a write when another server has taken the database. That server
// waits for the writes that have passed.
func (s *Store) fence(ctx context.Context, tx *sql.Tx) error {
	var owner string
	if err := tx.QueryRowContext(ctx, "SELECT owner FROM server_owner FOR SHARE").Scan(&owner); err != nil {
		return err
	}
	if owner != s.token {
		return apierr.New(apierr.BackendUnavailable, "another server has taken this server's database, and nothing was changed; stop one of the two").Because(errOwned)
	}
	return nil
}

var errOwned = errors.New("another server uses it; one server at a time may")

// watchPeriod is how long a lost lock stays lost at most.
const watchPeriod = 2 * time.Second

// watch takes the lock back when the database has restarted.
func (s *Store) watch(ctx context.Context, logger *slog.Logger) {
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	ready := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		looking, cancel := context.WithTimeout(ctx, watchPeriod)
		err := s.Ready(looking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && ready:
			logger.ErrorContext(ctx, "the database cannot be used", "error", err)
		case err == nil && !ready:
			logger.InfoContext(ctx, "the database can be used again")
		}
		ready = err == nil
	}
}

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
	owner, err := s.own(ctx, takeBack)
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
	s.stop()
	s.watching.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.owner.Close()
	if errors.Is(err, sql.ErrConnDone) {
		err = nil // It has ended with the database.
	}
	return errors.Join(err, s.Store.Close())
}

// dialect is that of a store that owns its database.
func (s *Store) dialect() sqlstore.Dialect {
	own := dialect()
	own.Begin = s.fence
	return own
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
	invalidText          = "22021"
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
		switch failure.Code {
		case invalidText:
			return apierr.New(apierr.InvalidRequest, "a text of the request has a NUL character, which nothing that is kept may have")
		case readOnlyTransaction:
			return apierr.New(apierr.BackendUnavailable, "the server's database is read-only now, and nothing was changed; try again later")
		case diskFull:
			return apierr.New(apierr.StorageFull, "the disk of the server's database is full and nothing was changed; free space on it and try again")
		}
		for _, prefix := range []string{connectionClass, resourcesClass, operatorIntervention} {
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
