package sqlite_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
	"github.com/sandbar-project/sandbar/internal/store/storetest"
)

// writerVariable makes the test binary the writing process of the crash suite:
// it names the database.
const writerVariable = "SANDBAR_TEST_CRASH_DATABASE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerVariable); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func writeUntilKilled(path string) error {
	store, err := sqlite.Open(context.Background(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return storetest.WriteUntilKilled(context.Background(), store, os.Stdout)
}

func openFile(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path, slog.New(slog.DiscardHandler))
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

func open(t *testing.T) *sqlite.Store {
	return openFile(t, filepath.Join(t.TempDir(), "sandbar.db"))
}

func TestSandboxes(t *testing.T) {
	storetest.Sandboxes(t, func(t *testing.T) gateway.Store { return open(t) })
}

func TestTokens(t *testing.T) {
	storetest.Tokens(t, func(t *testing.T) storetest.AuthStore { return open(t) })
}

func TestFleet(t *testing.T) {
	storetest.Fleet(t, func(t *testing.T) storetest.FleetStore { return open(t) })
}

func TestCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandbar.db")
	command := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), writerVariable+"="+path)
		return cmd
	}
	storetest.Crash(t, command, func(t *testing.T) gateway.Store { return openFile(t, path) })
}

func TestDatabaseIsForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandbar.db")
	openFile(t, path)
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o, want 600", filepath.Base(name), mode)
		}
	}
}

func TestDatabaseOpensAgainAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandbar.db")
	for range 2 {
		store, err := sqlite.Open(t.Context(), path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestArchives(t *testing.T) {
	storetest.Archives(t,
		func(t *testing.T) storetest.ArchiveStore { return open(t) },
		func(t *testing.T) storetest.ArchiveStore { return open(t) })
}

func TestADatabaseIsReadBesideItsServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandbar.db")
	openFile(t, path)
	beside, err := sqlite.OpenBeside(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := beside.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := beside.EnsureOrganization(t.Context(), auth.Organization{OrganizationID: "org", Name: "org"}); err == nil {
		t.Error("it writes, too")
	}
	if err := beside.Close(); err != nil {
		t.Error(err)
	}
}

func TestAudit(t *testing.T) {
	storetest.Audit(t, func(t *testing.T) storetest.AuditStore { return open(t) })
}
