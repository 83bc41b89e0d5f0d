package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/enginetest"
)

// crashOrder tells a process of this test's what to do before it dies.
type crashOrder struct {
	DataDir, Name, GuestPath, Runtime, HostStateDir string
	Spec                                            engine.Spec
	// Step is where it ends itself.
	Step string
}

// crashVariable holds the order, as JSON.
const crashVariable = "SANDBAR_TEST_CRASH"

// runCrashingProcess does what the order says, if there is one. It ends the
// process when it gets there.
func runCrashingProcess() bool {
	text, ordered := os.LookupEnv(crashVariable)
	if !ordered {
		return false
	}
	if err := crash(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func crash(text string) error {
	var order crashOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return err
	}
	e, err := New(context.Background(), order.config())
	if err != nil {
		return err
	}
	e.step = func(step string) {
		switch {
		case step == order.Step:
			die()
		case step == "bundle" && order.Step == "the runtime has begun":
			go dieOnceThere(e.directory(order.Spec.ID).runtime())
		case step == "bundle" && order.Step == "the cgroup is made":
			go dieOnceThere(e.cgroups.file(e.cgroup(order.Spec.ID), "memory", "cgroup.procs", "cgroup.procs"))
		}
	}
	if err := e.Create(context.Background(), order.Spec); err != nil {
		return err
	}
	return e.Remove(context.Background(), order.Spec.ID)
}

func die() {
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {} // Dead before this is reached.
}

// dieOnceThere ends the process in the midst of what the runtime does.
func dieOnceThere(path string) {
	for {
		if _, err := os.Stat(path); err == nil {
			die()
		}
	}
}

func (o crashOrder) config() Config {
	return Config{
		DataDir: o.DataDir, Name: o.Name, GuestPath: o.GuestPath, Runtime: o.Runtime, HostStateDir: o.HostStateDir,
		Resolvers: []netip.Addr{netip.MustParseAddr("198.51.100.53")},
	}
}

// crashSteps are the points at which a process that makes a sandbox, and then
// removes it, is killed.
var crashSteps = []string{
	"record", "netns", "link", "address", "firewall", "rootfs", "control", "bundle", "the runtime has begun",
	"the cgroup is made", "run", "socket", "sealed", "started", "ended", "unmounted", "released",
}

func TestNothingIsLostWhenTheProcessIsKilled(t *testing.T) {
	for _, name := range []string{"runc", "crun", "runsc"} {
		t.Run(name, func(t *testing.T) {
			requireRuntime(t, name)
			config := testConfig(t, name, buildGuest(t))
			config.Resolvers = []netip.Addr{netip.MustParseAddr("198.51.100.53")}
			e := newTestEngine(t, config)
			t.Cleanup(func() {
				if err := e.Uninstall(context.WithoutCancel(t.Context())); err != nil {
					t.Errorf("Uninstall: %v", err)
				}
			})
			image := pullTestImage(t, e)
			if err := e.firewall.ensure(); err != nil {
				t.Fatal(err)
			}
			before, err := enginetest.TakeSnapshot(marks(config)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range crashSteps {
				t.Run("after "+step, func(t *testing.T) {
					order := crashOrder{
						DataDir: config.DataDir, Name: config.Name, GuestPath: config.GuestPath, Runtime: name,
						HostStateDir: config.HostStateDir, Step: step,
						Spec: engine.Spec{
							ID: "sandbox", ImageDigest: image.Digest, Labels: map[string]string{"owner": "test"},
							Network: engine.Network{DNS: true, Egress: []engine.EgressRule{{Any: true}}},
						},
					}
					dieAt(t, order)
					checkFoundAndRemoved(t, e, step)
					left, err := enginetest.Leftovers(before, marks(config)...)
					if err != nil {
						t.Fatal(err)
					}
					if len(left) > 0 {
						t.Errorf("left behind: %q", left)
					}
				})
			}
		})
	}
}

func dieAt(t *testing.T, order crashOrder) {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), crashVariable+"="+string(text))
	output, _ := process.CombinedOutput()
	if status := process.ProcessState.Sys().(interface{ Signaled() bool }); !status.Signaled() {
		t.Fatalf("the process was not killed after %s: %s: %s", order.Step, process.ProcessState, output)
	}
}

// checkFoundAndRemoved does what the next process does.
func checkFoundAndRemoved(t *testing.T, e *Engine, step string) {
	t.Helper()
	sandboxes, err := e.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	want := engine.StateBroken
	switch step {
	case "started":
		want = engine.StateRunning
	case "ended", "unmounted", "released":
		want = engine.StateExited
	}
	if len(sandboxes) != 1 || sandboxes[0].ID != "sandbox" || sandboxes[0].State != want || sandboxes[0].Labels["owner"] != "test" {
		t.Errorf("List() = %+v; want one in state %d with its labels", sandboxes, want)
	}
	if want == engine.StateRunning {
		conn, err := e.Dial(t.Context(), "sandbox")
		if err != nil {
			t.Errorf("Dial: %v", err)
		} else {
			conn.Close()
		}
	}
	for range 2 {
		if err := e.Remove(t.Context(), "sandbox"); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	sandboxes, err = e.List(t.Context())
	if err != nil || len(sandboxes) > 0 {
		t.Errorf("List() = %+v, %v; want nothing", sandboxes, err)
	}
}

// pullTestImage gives an engine an image with nothing in it.
func pullTestImage(t testing.TB, e *Engine) engine.Image {
	t.Helper()
	reference := enginetest.Registry(t) + "/test/empty:1"
	enginetest.Push(t, reference, enginetest.Image(t))
	image, err := e.PullImage(t.Context(), engine.PullRequest{Reference: reference}, nil)
	if err != nil {
		t.Fatalf("PullImage: %v", err)
	}
	return image
}

func TestRemoveWorksOnADirectoryWithoutARecord(t *testing.T) {
	requireRuntime(t, "runc")
	config := testConfig(t, "runc", buildGuest(t))
	e := newTestEngine(t, config)
	t.Cleanup(func() {
		if err := e.Uninstall(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Uninstall: %v", err)
		}
	})
	for name, spoil := range map[string]func(directory) error{
		"no record":     func(directory) error { return nil },
		"a broken one":  func(d directory) error { return os.WriteFile(d.record(), []byte("{"), 0o600) },
		"half unpacked": func(d directory) error { return os.MkdirAll(d.upper(), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := e.directory("sandbox")
			if err := os.Mkdir(string(dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			checkBroken(t, e)
			if err := e.Remove(t.Context(), "sandbox"); err != nil {
				t.Errorf("Remove: %v", err)
			}
			if _, err := os.Stat(string(dir)); !os.IsNotExist(err) {
				t.Errorf("the directory is still there: %v", err)
			}
		})
	}
}

func checkBroken(t *testing.T, e *Engine) {
	t.Helper()
	sandboxes, err := e.List(t.Context())
	if err != nil || len(sandboxes) != 1 || sandboxes[0].State != engine.StateBroken {
		t.Errorf("List() = %+v, %v; want one that is broken", sandboxes, err)
	}
}
