package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/install"
	"github.com/sandbar-project/sandbar/internal/runner"
)

// crashes is a variable of the deployment that makes the process end at once.
const crashes = "CRASHES"

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "runner" && os.Args[2] == "serve" {
		os.Exit(runnerMain(os.Args[4]))
	}
	goleak.VerifyTestMain(m)
}

// runnerMain stands for a runner: it reads its configuration and waits.
func runnerMain(path string) int {
	config, err := runner.LoadConfig(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if os.Getenv(crashes) != "" {
		fmt.Fprintln(os.Stderr, "no luck today")
		return 1
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM)
	fmt.Fprintln(os.Stderr, "running", config.Version)
	<-terminated
	return 0
}

const patience = 60 * time.Second

// host is a machine for runners.
type host struct {
	t       *testing.T
	options Options
	// uninstalled are the configurations that UninstallEngine was given.
	uninstalled []string
}

func newHost(t *testing.T) *host {
	h := &host{t: t}
	h.options = Options{
		Directory: t.TempDir(),
		ServerURL: "http://127.0.0.1:1",
		Preflight: func(runner.EngineConfig) error { return nil },
		UninstallEngine: func(_ context.Context, path string) error {
			h.uninstalled = append(h.uninstalled, path)
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	return h
}

func (h *host) installer() *Installer {
	h.t.Helper()
	i, err := New(h.options)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := i.Uninstall(context.Background(), "org", "runner"); err != nil {
			h.t.Error(err)
		}
		if err := i.Close(); err != nil {
			h.t.Error(err)
		}
		i.running.Wait()
	})
	return i
}

func target(revision int32) install.Target {
	return install.Target{
		OrganizationID: "org", RunnerID: "runner", Revision: revision, Version: "1.2.3",
		Deployment: &sandboxv1.DeploymentSpec{}, EnrollmentToken: "secret",
	}
}

func (h *host) ensure(i *Installer, of install.Target) {
	h.t.Helper()
	if err := i.Ensure(h.t.Context(), of); err != nil {
		h.t.Fatal(err)
	}
}

// await observes revision 1 until it is as wanted.
func (h *host) await(i *Installer, what string, wanted func(install.Observation) bool) install.Observation {
	h.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		observed, err := i.Observe(h.t.Context(), "org", "runner", 1)
		if err != nil {
			h.t.Fatal(err)
		}
		if wanted(observed) {
			return observed
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s: observed %v", what, observed)
		}
	}
}

func running(o install.Observation) bool { return o.Phase == install.PhaseRunning }

func (h *host) files(revision int32) revisionFiles {
	h.t.Helper()
	of, err := h.options.runnerFiles("org", "runner")
	if err != nil {
		h.t.Fatal(err)
	}
	return of.revision(revision)
}

func (h *host) pid(revision int32) int {
	h.t.Helper()
	found, err := h.files(revision).find()
	if err != nil {
		h.t.Fatal(err)
	}
	found.release()
	return found.Pid
}

func gone(pid int) bool {
	_, err := startTicks64(pid)
	return errors.Is(err, errProcessGone)
}

func TestEnsureStartsOneProcess(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	h.ensure(i, target(1))
	h.await(i, "starts", running)
	first := h.pid(1)
	h.ensure(i, target(1))
	h.await(i, "still runs", running)
	if again := h.pid(1); again != first {
		t.Errorf("process %d took the place of %d", again, first)
	}
	for _, path := range []string{h.files(1).token(), h.files(1).config()} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first))
	environ, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/environ", first))
	if err := errors.Join(err, err2); err != nil || strings.Contains(string(cmdline)+string(environ), "secret") {
		t.Errorf("the token shows: %q %q %v", cmdline, environ, err)
	}
}

func TestDeadProcessIsStartedAgain(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	h.ensure(i, target(1))
	h.await(i, "starts", running)
	first := h.pid(1)
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.await(i, "is started again", func(o install.Observation) bool {
		found, err := h.files(1).find()
		if err != nil {
			return false
		}
		found.release()
		return found.Pid != first && running(o)
	})
}

func TestNewServerAdoptsWhatRuns(t *testing.T) {
	for name, forget := range map[string]bool{"written down": false, "not written down yet": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			old := h.installer()
			h.ensure(old, target(1))
			h.await(old, "starts", running)
			pid := h.pid(1)
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			if forget {
				if err := os.Remove(h.files(1).process()); err != nil {
					t.Fatal(err)
				}
			}
			i := h.installer()
			h.await(i, "is seen without Ensure", running)
			h.ensure(i, target(1))
			h.await(i, "is adopted", running)
			if again := h.pid(1); again != pid {
				t.Errorf("process %d took the place of %d", again, pid)
			}
			if err := i.Retire(t.Context(), "org", "runner", 1); err != nil {
				t.Fatal(err)
			}
			if !gone(pid) {
				t.Error("retiring left the process")
			}
		})
	}
}

func TestRecycledProcessNumberIsNotSignalled(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	h.ensure(i, target(1))
	h.await(i, "starts", running)
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	other, err := json.Marshal(process{Pid: bystander.Process.Pid, StartTicks: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.files(1).process(), other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.Retire(t.Context(), "org", "runner", 1); err != nil {
		t.Fatal(err)
	}
	if gone(bystander.Process.Pid) {
		t.Error("another process was signalled")
	}
}

func TestCrashLoopIsToldWithTheLogsEnd(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	of := target(1)
	of.Deployment.Env = map[string]string{crashes: "yes"}
	h.ensure(i, of)
	observed := h.await(i, "loops", func(o install.Observation) bool { return o.Error != nil })
	if observed.Error.GetReason() != sandboxv1.InstallError_CRASH_LOOP || !strings.Contains(observed.Error.GetDiagnosticDetail(), "no luck today") {
		t.Errorf("observed %v", observed.Error)
	}
}

func TestRetireTakesOneRevisionAway(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	h.ensure(i, target(1))
	h.ensure(i, target(2))
	h.await(i, "starts", running)
	if revisions, err := i.Revisions(t.Context(), "org", "runner"); err != nil || !cmp.Equal(revisions, []int32{1, 2}) {
		t.Errorf("revisions %v, %v", revisions, err)
	}
	pid := h.pid(1)
	for range 2 {
		if err := i.Retire(t.Context(), "org", "runner", 1); err != nil {
			t.Fatal(err)
		}
	}
	if !gone(pid) {
		t.Error("the process is left")
	}
	if revisions, err := i.Revisions(t.Context(), "org", "runner"); err != nil || !cmp.Equal(revisions, []int32{2}) {
		t.Errorf("revisions %v, %v", revisions, err)
	}
	h.await(i, "is absent", func(o install.Observation) bool { return o.Phase == install.PhaseAbsent })
}

func TestUninstallLeavesNothing(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	h.ensure(i, target(1))
	h.await(i, "starts", running)
	of, err := h.options.runnerFiles("org", "runner")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(of.engine(), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := i.Uninstall(t.Context(), "org", "runner"); err != nil {
			t.Fatal(err)
		}
	}
	if !cmp.Equal(h.uninstalled, []string{of.uninstall()}) {
		t.Errorf("engines uninstalled: %v", h.uninstalled)
	}
	if _, err := os.Stat(filepath.Join(h.options.Directory, "runners", "org")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
}

func TestChangedConfigurationRestartsTheProcess(t *testing.T) {
	h := newHost(t)
	old := h.installer()
	h.ensure(old, target(1))
	h.await(old, "starts", running)
	pid := h.pid(1)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	h.options.ServerURL = "http://127.0.0.1:2"
	i := h.installer()
	h.ensure(i, target(1))
	h.await(i, "starts again", running)
	if again := h.pid(1); again == pid {
		t.Error("the process still has the old configuration")
	}
}

func TestArgumentsReachTheRunner(t *testing.T) {
	h := newHost(t)
	i := h.installer()
	of := target(1)
	of.Deployment.Args = []string{"--max-sandboxes=7"}
	of.Deployment.Scaling = &sandboxv1.RunnerScaling{}
	h.ensure(i, of)
	h.await(i, "starts", running)
	config, err := runner.LoadConfig(h.files(1).config())
	if err != nil || config.Capacity.MaxSandboxes != 7 || !cmp.Equal(config.NotApplicable, []string{"scaling"}) {
		t.Errorf("configured as %+v, %v; want 7 sandboxes, and scaling as all that does not apply", config, err)
	}
}

func TestWhatCannotWorkIsObservedAsFailed(t *testing.T) {
	for name, tc := range map[string]struct {
		deployment *sandboxv1.DeploymentSpec
		preflight  error
		reason     sandboxv1.InstallError_Reason
	}{
		"a reserved variable": {deployment: &sandboxv1.DeploymentSpec{Env: map[string]string{"LD_PRELOAD": "x"}}, reason: sandboxv1.InstallError_INVALID_DEPLOYMENT},
		"a limit that is no quantity": {
			deployment: &sandboxv1.DeploymentSpec{Resources: &sandboxv1.RunnerResources{MemoryLimit: "much"}}, reason: sandboxv1.InstallError_INVALID_DEPLOYMENT,
		},
		"arguments that no runner takes": {
			deployment: &sandboxv1.DeploymentSpec{Args: []string{"--log-level=debug", "--privileged"}}, reason: sandboxv1.InstallError_INVALID_DEPLOYMENT,
		},
		"a host without a runtime": {
			preflight: &failure{reason: sandboxv1.InstallError_RUNTIME_UNAVAILABLE, hints: []string{"install one"}}, reason: sandboxv1.InstallError_RUNTIME_UNAVAILABLE,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.options.Preflight = func(runner.EngineConfig) error { return tc.preflight }
			i := h.installer()
			of := target(1)
			if tc.deployment != nil {
				of.Deployment = tc.deployment
			}
			h.ensure(i, of)
			observed, err := i.Observe(t.Context(), "org", "runner", 1)
			if err != nil || observed.Phase != install.PhaseFailed || observed.Error.GetReason() != tc.reason || len(observed.Error.GetRemediationHints()) == 0 {
				t.Errorf("observed %v, %v", observed, err)
			}
		})
	}
}

func TestHostWithoutARuntimeIsTold(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to come that far")
	}
	err := CheckHost(runner.EngineConfig{GuestBinary: os.Args[0], RuntimePath: "/no/such/runtime-here"})
	var f *failure
	if !errors.As(err, &f) || f.reason != sandboxv1.InstallError_RUNTIME_UNAVAILABLE {
		t.Errorf("got %v", err)
	}
}

func TestProcessIsBoundedByItsDeployment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make control groups")
	}
	h := newHost(t)
	i := h.installer()
	of := target(1)
	of.Deployment.Resources = &sandboxv1.RunnerResources{MemoryLimit: "256Mi", CpuRequest: "1"}
	h.ensure(i, of)
	h.await(i, "starts", running)
	config, err := runner.LoadConfig(h.files(1).config())
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(config.NotApplicable, []string{"resources.cpu_request"}) {
		t.Skipf("this host does not bound processes: %v", config.NotApplicable)
	}
	group := h.files(1).cgroup()
	membership, err := os.ReadFile("/proc/" + strconv.Itoa(h.pid(1)) + "/cgroup")
	if err != nil || !strings.Contains(string(membership), group) {
		t.Errorf("the process is in %q, %v", membership, err)
	}
	if err := i.Retire(t.Context(), "org", "runner", 1); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob("/sys/fs/cgroup/*/" + group); err != nil || len(left) > 0 {
		t.Errorf("control groups are left: %v, %v", left, err)
	}
}
