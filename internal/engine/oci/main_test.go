package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/enginetest"
)

func TestMain(m *testing.M) {
	if runCrashingProcess() {
		return
	}
	goleak.VerifyTestMain(m)
}

// engineNames counts the engines of this process, so that each has a name of its
// own.
var engineNames atomic.Int64

func uniqueName() string { return fmt.Sprintf("test-%d-%d", os.Getpid(), engineNames.Add(1)) }

// buildGuest builds the conformance suite's guest.
func buildGuest(t *testing.T) string {
	t.Helper()
	path, err := enginetest.BuildGuest(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// requireRuntime skips the test where sandboxes cannot run.
func requireRuntime(t *testing.T, name string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the local engine makes namespaces, mounts and firewall rules")
	}
	if _, err := lookRuntime(name, systemPath); err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
}

// testConfig is for an engine with a name and directories of its own.
func testConfig(t *testing.T, runtimeName, guest string) Config {
	t.Helper()
	return Config{
		DataDir: filepath.Join(t.TempDir(), "data"), Name: uniqueName(), GuestPath: guest, Runtime: runtimeName,
		// The host's own, as these engines use the host's own switch.
		HostStateDir: defaultHostStateDir,
	}
}

func newTestEngine(t *testing.T, config Config) *Engine {
	t.Helper()
	e, err := New(t.Context(), config)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

// marks are what the names of an engine's things contain.
func marks(config Config) []string {
	return []string{config.DataDir, config.cgroupParent(), config.tableName(), config.linkPrefix()}
}

func TestConformance(t *testing.T) {
	for _, name := range []string{"runc", "crun", "runsc"} {
		t.Run(name, func(t *testing.T) {
			requireRuntime(t, name)
			guest := buildGuest(t)
			enginetest.Run(t, func(t *testing.T, setup enginetest.Setup) enginetest.Instance {
				config := testConfig(t, name, guest)
				config.Resolvers = setup.Resolvers
				e := newTestEngine(t, config)
				t.Cleanup(func() {
					if err := e.Uninstall(context.WithoutCancel(t.Context())); err != nil {
						t.Errorf("Uninstall: %v", err)
					}
				})
				return enginetest.Instance{
					Engine: e,
					Marks:  marks(config),
					Reopen: func(t *testing.T) engine.Engine { return newTestEngine(t, config) },
				}
			}, enginetest.Options{UserspaceKernel: name == "runsc"})
		})
	}
}
