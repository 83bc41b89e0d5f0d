package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/postgres"
	"github.com/sandbar-project/sandbar/internal/store/postgrestest"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
	"github.com/sandbar-project/sandbar/internal/store/storetest"
)

// writerVariable makes the test binary the writing process of the crash suite:
// it is the database's URL.
const writerVariable = "SANDBAR_TEST_CRASH_DATABASE_URL"

func TestMain(m *testing.M) {
	if databaseURL := os.Getenv(writerVariable); databaseURL != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(databaseURL))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func writeUntilKilled(databaseURL string) error {
	store, err := postgres.Open(context.Background(), databaseURL, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return storetest.WriteUntilKilled(context.Background(), store, os.Stdout)
}

func open(t *testing.T, databaseURL string) *postgres.Store {
	t.Helper()
	store, err := postgres.Open(t.Context(), databaseURL, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestSandboxes(t *testing.T) {
	server := postgrestest.Start(t)
	storetest.Sandboxes(t, func(t *testing.T) gateway.Store { return open(t, server.Database(t)) })
}

func TestTokens(t *testing.T) {
	server := postgrestest.Start(t)
	storetest.Tokens(t, func(t *testing.T) storetest.AuthStore { return open(t, server.Database(t)) })
}

func TestFleet(t *testing.T) {
	server := postgrestest.Start(t)
	storetest.Fleet(t, func(t *testing.T) storetest.FleetStore { return open(t, server.Database(t)) })
}

func TestCrash(t *testing.T) {
	databaseURL := postgrestest.Start(t).Database(t)
	command := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), writerVariable+"="+databaseURL)
		return cmd
	}
	storetest.Crash(t, command, func(t *testing.T) gateway.Store { return open(t, databaseURL) })
}

// openBriefly opens the database if nobody has it, and does not wait long.
func openBriefly(t *testing.T, databaseURL string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	store, err := postgres.Open(ctx, databaseURL, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return store.Close()
}

func TestADatabaseHasOneServerAtATime(t *testing.T) {
	databaseURL := postgrestest.Start(t).Database(t)
	first, err := postgres.Open(t.Context(), databaseURL, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := openBriefly(t, databaseURL); err == nil || !strings.Contains(err.Error(), "another server uses it") {
		t.Errorf("a second server got %v, want a refusal", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, databaseURL).Ready(t.Context()); err != nil {
		t.Errorf("the next server: %v", err)
	}
}

// TestAKilledDatabaseServerLosesNothing writes until the server is gone, starts
// it again and wants to find what was answered. The store that was open goes on.
func TestAKilledDatabaseServerLosesNothing(t *testing.T) {
	server := postgrestest.Start(t)
	databaseURL := server.Database(t)
	store := open(t, databaseURL)
	const answered = 200
	var last int
	writes, stop := make(chan int), make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			if _, _, err := store.InsertSandbox(context.Background(), storetest.Sandbox("org", sandboxID(i), epoch)); err != nil {
				failed <- err
				return
			}
			select {
			case writes <- i:
			case <-stop:
			}
		}
	}()
	for last < answered {
		last = <-writes
	}
	close(stop)
	server.Kill(t)
	var refusal *apierr.Error
	if err := <-failed; !errors.As(err, &refusal) || refusal.Reason() != apierr.BackendUnavailable {
		t.Errorf("a write without a server got %v, want BACKEND_UNAVAILABLE", err)
	}
	server.Run(t)
	if err := store.Ready(t.Context()); err != nil {
		t.Errorf("not ready with the server back: %v", err)
	}
	if openBriefly(t, databaseURL) == nil {
		t.Error("the database is not the store's any more")
	}
	for i := range last + 1 {
		if _, err := store.Sandbox(t.Context(), "org", sandboxID(i)); err != nil {
			t.Fatalf("write %d was answered and is lost: %v", i, err)
		}
	}
}

var epoch = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

func sandboxID(i int) string { return fmt.Sprintf("sb-%06d", i) }

func TestAnUnreachableDatabaseIsNamedWithoutItsPassword(t *testing.T) {
	_, err := postgres.Open(t.Context(), "postgres://sandbar:hidden@127.0.0.1:1/sandbar?sslmode=disable", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("Open = %v; want an error with the address and without the password", err)
	}
	_, err = postgres.Open(t.Context(), "postgres://sandbar:hidden@127.0.0.1:port/sandbar", slog.New(slog.DiscardHandler))
	if err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("Open = %v; want an error without the password", err)
	}
}

func TestArchivesMoveBetweenTheDatabases(t *testing.T) {
	server := postgrestest.Start(t)
	remote := func(t *testing.T) storetest.ArchiveStore { return open(t, server.Database(t)) }
	t.Run("PostgreSQL to PostgreSQL", func(t *testing.T) { storetest.Archives(t, remote, remote) })
	t.Run("SQLite to PostgreSQL", func(t *testing.T) { storetest.Archives(t, embedded, remote) })
	t.Run("PostgreSQL to SQLite", func(t *testing.T) { storetest.Archives(t, remote, embedded) })
}

func embedded(t *testing.T) storetest.ArchiveStore {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "sandbar.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestAudit(t *testing.T) {
	server := postgrestest.Start(t)
	storetest.Audit(t, func(t *testing.T) storetest.AuditStore { return open(t, server.Database(t)) })
}

// The lock is lost with the database's restart, and nobody may use the chance.
func TestAServerWhoseDatabaseWasTakenWritesNoMore(t *testing.T) {
	server := postgrestest.Start(t)
	databaseURL := server.Database(t)
	first := open(t, databaseURL)
	server.Kill(t)
	server.Run(t)
	// Before the first has looked.
	second, err := postgres.Open(t.Context(), databaseURL, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skipf("the first server was faster: %v", err)
	}
	if _, _, err := second.InsertSandbox(t.Context(), storetest.Sandbox("org", "sb-2", epoch)); err != nil {
		t.Fatal(err)
	}
	var refusal *apierr.Error
	for {
		_, _, err := first.InsertSandbox(t.Context(), storetest.Sandbox("org", "sb-1", epoch))
		if err == nil {
			t.Fatal("both servers write")
		}
		if errors.As(err, &refusal) && strings.Contains(refusal.Error(), "another server has taken") {
			break
		}
	}
	// Not even when the second has gone: the first knows nothing of its writes.
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := first.Ready(ctx); err == nil {
		t.Error("the first server calls itself ready")
	}
}
