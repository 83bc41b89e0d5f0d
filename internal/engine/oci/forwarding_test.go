package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// inOwnNetwork runs f on a thread with a network namespace of its own, and so
// with a switch of its own.
func inOwnNetwork(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	done := make(chan error, 1)
	go func() {
		// Also after a failed test, which ends the goroutine.
		defer close(done)
		// The thread ends with the goroutine, as it is never unlocked.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func forwardingNow() (string, error) {
	data, err := os.ReadFile(forwardingSwitch)
	return strings.TrimSpace(string(data)), err
}

// forwardingHost is a host with engines, and what should be.
type forwardingHost struct {
	dir     string
	before  string
	engines map[string]bool
}

func (h *forwardingHost) engine(name string) *forwarding {
	return &forwarding{stateDir: filepath.Join(h.dir, "host"), name: name, dataDir: filepath.Join(h.dir, name)}
}

func (h *forwardingHost) check() error {
	want := "1"
	if len(h.engines) == 0 {
		want = h.before
	}
	got, err := forwardingNow()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the switch is at %s with the engines %v; want %s", got, h.engines, want)
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "host", "*"))
	if err != nil {
		return err
	}
	if (len(left) > 0) != (len(h.engines) > 0) {
		return fmt.Errorf("files %q with the engines %v", left, h.engines)
	}
	return nil
}

// Whatever the engines of a host do and however they end, the switch is on
// while one of them needs it, and afterwards as it was.
func TestForwardingIsLeftAsItWas(t *testing.T) {
	inOwnNetwork(t, func() error {
		ctx := context.Background()
		rapid.Check(t, func(t *rapid.T) {
			dir, err := os.MkdirTemp("", "forwarding-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			h := &forwardingHost{dir: dir, before: rapid.SampledFrom([]string{"0", "1"}).Draw(t, "before"), engines: map[string]bool{}}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(writeExisting(forwardingSwitch, h.before))
			names := rapid.SampledFrom([]string{"a", "b", "c"})
			enable := func(t *rapid.T) string {
				name := names.Draw(t, "engine")
				must(os.MkdirAll(h.engine(name).dataDir, 0o700))
				must(h.engine(name).enable(ctx))
				h.engines[name] = true
				return name
			}
			restore := func(name string) {
				must(h.engine(name).restore(ctx))
				delete(h.engines, name)
			}
			t.Repeat(map[string]func(*rapid.T){
				"":        func(t *rapid.T) { must(h.check()) },
				"enable":  func(t *rapid.T) { enable(t) },
				"restore": func(t *rapid.T) { restore(names.Draw(t, "engine")) },
				"die between the record and the switch, and come back": func(t *rapid.T) {
					name := enable(t)
					if len(h.engines) == 1 {
						must(writeExisting(forwardingSwitch, h.before))
					}
					must(h.engine(name).enable(ctx))
				},
				"die between the record and the switch, and be uninstalled": func(t *rapid.T) {
					name := enable(t)
					if len(h.engines) == 1 {
						must(writeExisting(forwardingSwitch, h.before))
					}
					restore(name)
				},
				"lose the data directory": func(t *rapid.T) {
					name := names.Draw(t, "engine")
					must(os.RemoveAll(h.engine(name).dataDir))
					// The next engine that comes or goes clears up after it.
					delete(h.engines, name)
					restore(enable(t))
				},
			})
		})
		return writeExisting(forwardingSwitch, "0")
	})
}

func TestNamespacesHaveTheirOwnAccount(t *testing.T) {
	dir := t.TempDir()
	engine := func(name string) *forwarding { return &forwarding{stateDir: dir, name: name, dataDir: dir} }
	var inner string
	inOwnNetwork(t, func() error {
		if err := engine("outer").enable(t.Context()); err != nil {
			return err
		}
		inOwnNetwork(t, func() error {
			before, err := forwardingNow()
			if err != nil {
				return err
			}
			if err := engine("inner").enable(t.Context()); err != nil {
				return err
			}
			if err := engine("inner").restore(t.Context()); err != nil {
				return err
			}
			now, err := forwardingNow()
			inner = before + "→" + now
			return err
		})
		now, err := forwardingNow()
		if err == nil && now != "1" {
			err = fmt.Errorf("the other namespace's engine turned this one's switch to %s", now)
		}
		return err
	})
	if inner != "0→0" && inner != "1→1" {
		t.Errorf("the inner switch went %s", inner)
	}
}

// A runner is taken away on a host whose runtime and guest have gone before.
func TestUninstallNeedsNoRuntime(t *testing.T) {
	inOwnNetwork(t, func() error {
		before, err := forwardingNow()
		if err != nil {
			return err
		}
		config := testConfig(t, "runc", "/no/such/guest")
		config.RuntimePath = "/no/such/runtime"
		if err := os.MkdirAll(config.DataDir, 0o700); err != nil {
			return err
		}
		f := &forwarding{stateDir: config.HostStateDir, name: config.Name, dataDir: config.DataDir}
		if err := f.enable(t.Context()); err != nil {
			return err
		}
		for range 2 {
			if err := Uninstall(t.Context(), config); err != nil {
				return err
			}
		}
		now, err := forwardingNow()
		if err == nil && now != before {
			err = fmt.Errorf("the switch is at %s; it was at %s", now, before)
		}
		return err
	})
}
