package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbar-project/sandbar/internal/store/postgres"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore"
)

// Where a server keeps things in its data directory.
const (
	databaseFile      = "sandbar.db"
	enrollmentKeyFile = "enrollment.key"
)

// Place is where a server keeps everything.
type Place struct {
	// DataDir is the server's data directory.
	DataDir string
	// DatabaseURL names a PostgreSQL database; empty: the one in DataDir.
	DatabaseURL string
}

// Backup writes all that a server keeps, as of one instant, and answers with the
// number of the database's rows. The server may serve meanwhile. What is written
// holds secrets.
func Backup(ctx context.Context, from Place, version string, to io.Writer) (rows int64, err error) {
	key, err := os.ReadFile(filepath.Join(from.DataDir, enrollmentKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s is not a server's data directory: it has no %s", from.DataDir, enrollmentKeyFile)
	}
	if err != nil {
		return 0, fmt.Errorf("read enrolment key: %w", err)
	}
	store, err := openBeside(ctx, from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.Export(ctx, sqlstore.Header{
		CreateTime: time.Now().UTC(),
		Version:    version,
		Files:      map[string][]byte{enrollmentKeyFile: key},
	}, to)
}

func openBeside(ctx context.Context, from Place) (*sqlstore.Store, error) {
	if from.DatabaseURL != "" {
		return postgres.OpenBeside(ctx, from.DatabaseURL)
	}
	return sqlite.OpenBeside(filepath.Join(from.DataDir, databaseFile))
}

// Restore fills an empty place with what Backup has written, from either kind
// of database, or leaves the database empty. No server may use the place.
// Runners of this host are installed anew by the next server; their sandboxes
// of the time of the backup are reported as lost.
func Restore(ctx context.Context, to Place, from io.Reader, logger *slog.Logger) (rows int64, err error) {
	lock, err := lockDir(to.DataDir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	store, err := openStore(ctx, Config{DataDir: to.DataDir, DatabaseURL: to.DatabaseURL, Logger: logger})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.Import(ctx, from, func(header sqlstore.Header) error {
		return restoreKey(filepath.Join(to.DataDir, enrollmentKeyFile), header.Files[enrollmentKeyFile])
	})
}

// restoreKey never replaces another key: runners that have enrolled with it
// would be locked out.
func restoreKey(path string, key []byte) error {
	if len(key) != enrollmentKeyBytes {
		return fmt.Errorf("the archive's %s holds %d bytes and should hold %d", enrollmentKeyFile, len(key), enrollmentKeyBytes)
	}
	there, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return writeKey(path, key)
	case err != nil:
		return fmt.Errorf("read enrolment key: %w", err)
	case !bytes.Equal(there, key):
		return fmt.Errorf("%s is there and is not the archive's: restore into a directory of its own", path)
	}
	return nil
}
