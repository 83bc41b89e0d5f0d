package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// TestAHostWithoutARuntimeIsToldWhatToInstall: the engine does not start, and
// leaves nothing.
func TestAHostWithoutARuntimeIsToldWhatToInstall(t *testing.T) {
	empty := t.TempDir()
	refuses := filepath.Join(t.TempDir(), "runc")
	const script = "#!/bin/sh\ncase \"$1\" in --version) echo runc version 9.9.9;; *) echo no >&2; exit 1;; esac\n"
	if err := os.WriteFile(refuses, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(*Config)
		says   []string
	}{
		{
			name: "none is installed", change: func(*Config) {},
			says: []string{"runsc: not found", "crun: not found", "runc: not found", "install gVisor's runsc (https://", "apt-get install crun", "apt-get install runc"},
		},
		{
			name: "the one that is asked for is not installed", change: func(c *Config) { c.Runtime = "crun" },
			says: []string{"crun: not found", "install crun"},
		},
		{
			name: "the path is of nothing", change: func(c *Config) { c.Runtime, c.RuntimePath = "runc", filepath.Join(empty, "runc") },
			says: []string{filepath.Join(empty, "runc") + " --version", "no such file", "install runc"},
		},
		{
			name: "the one that is installed refuses to work", change: func(c *Config) { c.Runtime, c.RuntimePath = "runc", refuses },
			says: []string{"runc (" + refuses + ") does not work here", "install runc"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, as the engine does")
			}
			t.Setenv("PATH", empty)
			config := testConfig(t, "", refuses)
			config.systemDirectories = empty
			test.change(&config)
			e, err := New(t.Context(), config)
			if err == nil {
				t.Fatal(errors.Join(errors.New("the engine has started"), e.Close()))
			}
			if !errors.Is(err, engine.ErrRuntimeUnavailable) {
				t.Errorf("New = %v; want ErrRuntimeUnavailable", err)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
			if left, err := os.ReadDir(filepath.Join(config.DataDir, "sandboxes")); err != nil || len(left) != 0 {
				t.Errorf("left over: %v, %v", left, err)
			}
			if err := Uninstall(context.WithoutCancel(t.Context()), config); err != nil {
				t.Error(err)
			}
		})
	}
}
