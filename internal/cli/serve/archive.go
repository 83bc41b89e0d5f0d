package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/server"
)

// NewBackup makes `sandbar backup`.
func NewBackup(call *invocation.Invocation) *cobra.Command {
	var from server.Place
	command := &cobra.Command{
		Use:   "backup --data-dir DIR FILE",
		Short: "Write all that a server keeps to a file",
		Long: `Write all that a server keeps, as of one instant, to a file: the database and
the key of the data directory. The server may serve meanwhile. The file must not
exist; it is for its owner only, since it holds hashes of tokens and the key.

The file can be restored into either kind of database.`,
		Example: `  sandbar backup --data-dir /var/lib/sandbar sandbar-2026-11-30.backup
  SANDBAR_DATABASE_URL=postgres://… sandbar backup --data-dir /var/lib/sandbar sandbar.backup`,
		Args: invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runBackup(command.Context(), call, from, args[0])
		},
	}
	addPlaceFlags(command, &from)
	return command
}

func addPlaceFlags(command *cobra.Command, place *server.Place) {
	command.Flags().StringVar(&place.DataDir, "data-dir", "", "the server's data directory (required)")
	addDatabaseFlag(command.Flags(), &place.DatabaseURL)
}

func complete(place *server.Place, call *invocation.Invocation) error {
	if place.DataDir == "" {
		return invocation.Usagef("--data-dir is missing: it names the server's data directory")
	}
	return setDatabase(&place.DatabaseURL, call.Getenv)
}

func runBackup(ctx context.Context, call *invocation.Invocation, from server.Place, path string) error {
	if err := complete(&from, call); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s is there already; choose another name", path), err)
	}
	var rows int64
	err := writeWhole(path, func(file io.Writer) (err error) {
		rows, err = server.Backup(ctx, from, call.Version, file)
		return err
	})
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	fmt.Fprintf(call.IO.Err, "wrote %d rows to %s\n", rows, path)
	return nil
}

// NewRestore makes `sandbar restore`.
func NewRestore(call *invocation.Invocation) *cobra.Command {
	var to server.Place
	command := &cobra.Command{
		Use:   "restore --data-dir DIR FILE",
		Short: "Fill an empty database with what `sandbar backup` has written",
		Long: `Fill an empty database with what ` + "`sandbar backup`" + ` has written, all of it or
nothing. It may be of another kind than the one that was backed up: this is the
way from the embedded database to PostgreSQL, and back. No server may use the
data directory meanwhile.

The next server installs the runners anew. Sandboxes that ran when the backup was
made are reported as lost where their runner does not have them any more.`,
		Example: `  sandbar restore --data-dir /var/lib/sandbar --database-url postgres://sandbar@db/sandbar sandbar.backup`,
		Args:    invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runRestore(command.Context(), call, to, args[0])
		},
	}
	addPlaceFlags(command, &to)
	return command
}

func runRestore(ctx context.Context, call *invocation.Invocation, to server.Place, path string) (err error) {
	if err := complete(&to, call); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	rows, err := server.Restore(ctx, to, file, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	fmt.Fprintf(call.IO.Err, "restored %d rows\n", rows)
	return nil
}
