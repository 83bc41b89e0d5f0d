package serve_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/serve"
)

// command runs one command line, and answers with what it said.
func command(t *testing.T, make func(*invocation.Invocation) *cobra.Command, environment map[string]string, args ...string) (string, error) {
	t.Helper()
	var said bytes.Buffer
	call := &invocation.Invocation{
		IO: iostreams.Buffers(nil, &said, &said), Now: time.Now, Version: "1.0.0",
		Getenv: func(name string) string { return environment[name] },
	}
	c := make(call)
	c.SetArgs(args)
	c.SilenceErrors, c.SilenceUsage = true, true
	return said.String(), c.ExecuteContext(t.Context())
}

func TestABackupIsTakenWhileTheServerServesAndRestored(t *testing.T) {
	o := options(t)
	s := start(t, o)
	file := filepath.Join(t.TempDir(), "sandbar.backup")
	if _, err := command(t, serve.NewBackup, nil, "--data-dir", o.Server.DataDir, file); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %o, want 600", info.Mode().Perm())
	}
	if _, err := command(t, serve.NewBackup, nil, "--data-dir", o.Server.DataDir, file); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a second backup to the same file: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}

	if _, err := command(t, serve.NewRestore, nil, "--data-dir", o.Server.DataDir, file); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a restore over what is there: %v", err)
	}
	// The token of before is good at the server that is restored.
	restored := options(t)
	restored.AdminTokenFile = ""
	if _, err := command(t, serve.NewRestore, nil, "--data-dir", restored.Server.DataDir, file); err != nil {
		t.Fatal(err)
	}
	again := start(t, restored)
	if err := listTokens(t, again.url, o.AdminTokenFile); err != nil {
		t.Error(err)
	}
	if err := again.stop(); err != nil {
		t.Error(err)
	}
}

func TestAFailedBackupLeavesNoFile(t *testing.T) {
	directory := t.TempDir()
	if _, err := command(t, serve.NewBackup, nil, "--data-dir", directory, filepath.Join(directory, "backup")); err == nil {
		t.Error("an empty directory was backed up")
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestAPasswordDoesNotBelongOnTheCommandLine(t *testing.T) {
	for name, test := range map[string]struct{ flag, variable, says string }{
		"as user information": {flag: "postgres://sandbar:hidden@127.0.0.1:1/sandbar", says: "$SANDBAR_DATABASE_URL"},
		"as a parameter":      {flag: "postgres://sandbar@127.0.0.1:1/sandbar?password=hidden", says: "$SANDBAR_DATABASE_URL"},
		"another database":    {flag: "mysql://127.0.0.1/sandbar", says: "postgres://"},
		"in the environment":  {variable: "postgres://sandbar:hidden@127.0.0.1:1/sandbar?sslmode=disable", says: "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--data-dir", t.TempDir(), filepath.Join(t.TempDir(), "file")}
			if test.flag != "" {
				args = append(args, "--database-url", test.flag)
			}
			if err := os.WriteFile(args[2], nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := command(t, serve.NewRestore, map[string]string{"SANDBAR_DATABASE_URL": test.variable}, args...)
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("got %v; want an error with %q and without the password", err, test.says)
			}
		})
	}
}
