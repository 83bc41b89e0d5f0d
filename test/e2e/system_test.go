// Package e2e runs the whole system as a user does: a real `sandbar dev`, a
// runner that is declared through the API, and the command line against it.
//
// It needs root, an OCI runtime and a static busybox; where one is missing the
// tests skip and say so. SANDBAR_RUNTIME chooses the runtime.
package e2e

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/engine/enginetest"
)

// programs is the directory of the built programs; missing says why the tests
// cannot run here.
var programs, missing string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if missing = whatIsMissing(); missing != "" {
		return m.Run()
	}
	directory, err := os.MkdirTemp("", "sandbar-e2e-bin-")
	if err != nil {
		log.Print(err)
		return 1
	}
	defer os.RemoveAll(directory)
	programs = directory
	for _, program := range []string{"sandbar", "sandbar-guest"} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(directory, program), "../../cmd/"+program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			log.Printf("build %s: %v\n%s", program, err, out)
			return 1
		}
	}
	return m.Run()
}

func whatIsMissing() string {
	if os.Geteuid() != 0 {
		return "root is needed to make namespaces"
	}
	if ociRuntime() == "" {
		return "no OCI runtime is installed (runsc, crun or runc)"
	}
	if busybox() == "" {
		return "no busybox is installed (apt-get install busybox-static)"
	}
	return ""
}

func ociRuntime() string {
	for _, candidate := range []string{os.Getenv("SANDBAR_RUNTIME"), "runsc", "runc", "crun"} {
		if _, err := exec.LookPath(candidate); candidate != "" && err == nil {
			return candidate
		}
	}
	return ""
}

func busybox() string {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return ""
	}
	return path
}

// system is a `sandbar dev` that a test has started.
type system struct {
	t         *testing.T
	directory string
	address   string
	mirror    string
	before    enginetest.Snapshot
	dev       *exec.Cmd
	env       []string
	// engine is what the runner's engine names its things after.
	engine string
}

// start starts the system and declares a runner, which is ready when it
// returns.
func start(t *testing.T, arguments ...string) *system {
	t.Helper()
	return startIn(t, t.TempDir(), arguments...)
}

// startIn is start with its data below that directory.
func startIn(t *testing.T, parent string, arguments ...string) *system {
	t.Helper()
	s := startEmptyIn(t, parent, arguments...)
	s.declareRunner()
	return s
}

// startEmpty starts the system without a runner.
func startEmpty(t *testing.T, arguments ...string) *system {
	t.Helper()
	return startEmptyIn(t, t.TempDir(), arguments...)
}

func startEmptyIn(t *testing.T, parent string, arguments ...string) *system {
	t.Helper()
	if missing != "" {
		t.Skip("the whole system cannot run here: " + missing)
	}
	s := &system{t: t, directory: filepath.Join(parent, "data"), address: freeAddress(t), mirror: serveImages(t)}
	before, err := enginetest.TakeSnapshot(s.marks()...)
	if err != nil {
		t.Fatal(err)
	}
	s.before = before
	s.startDev(arguments...)
	t.Cleanup(s.end)
	return s
}

// marks are in the names of all that this system makes, and of nothing else on
// the machine.
func (s *system) marks() []string {
	marks := []string{s.directory}
	if s.engine != "" {
		marks = append(marks, s.engine, strings.ReplaceAll(s.engine, "-", "_"))
	}
	return marks
}

// readEngineName takes the name from the runner's configuration, which goes
// when the runner is stopped.
func (s *system) readEngineName() {
	s.t.Helper()
	configs, err := filepath.Glob(filepath.Join(s.directory, "server/runners/*/*/revisions/*/config.json"))
	if err != nil || len(configs) != 1 {
		s.t.Fatalf("want one configuration of a runner, got %v, %v", configs, err)
	}
	var config struct {
		Engine struct {
			Name string `json:"name"`
		} `json:"engine"`
	}
	content, err := os.ReadFile(configs[0])
	if err == nil {
		err = json.Unmarshal(content, &config)
	}
	if err != nil || config.Engine.Name == "" {
		s.t.Fatalf("read the engine's name: %q, %v", config.Engine.Name, err)
	}
	s.engine = config.Engine.Name
}

// startDev returns when the system says that it is ready.
func (s *system) startDev(arguments ...string) {
	s.t.Helper()
	log, err := os.OpenFile(s.directory+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.dev = exec.Command(filepath.Join(programs, "sandbar"), append([]string{
		"dev", "--data-dir", s.directory, "--listen", s.address,
		"--runtime", ociRuntime(), "--registry-mirror", "docker.io=" + s.mirror,
	}, arguments...)...)
	s.dev.Stderr = log
	out, err := s.dev.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.dev.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		fmt.Fprintln(log, lines.Text())
	}
	if lines.Text() != "ready" {
		s.t.Fatalf("sandbar dev ended before it was ready:\n%s", s.log())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	s.readEnv()
}

func (s *system) log() string {
	content, err := os.ReadFile(s.directory + ".log")
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// readEnv takes the variables as a shell reads them.
func (s *system) readEnv() {
	s.t.Helper()
	shell := exec.Command("sh", "-c", `set -a; . "$1"; env`, "sh", filepath.Join(s.directory, "env"))
	out, err := shell.Output()
	if err != nil {
		s.t.Fatal(err)
	}
	s.env = strings.Split(strings.TrimSpace(string(out)), "\n")
}

func (s *system) getenv(name string) string {
	for _, pair := range s.env {
		if key, value, _ := strings.Cut(pair, "="); key == name {
			return value
		}
	}
	return ""
}

func (s *system) client() *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Getenv: s.getenv}, client.Management)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func (s *system) declareRunner() {
	s.t.Helper()
	_, err := s.client().Runners.CreateManagedRunner(s.t.Context(), &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{
			RunnerId: s.getenv("TF_VAR_runner_id"), Zone: s.getenv("TF_VAR_zone"), ClusterId: s.getenv("TF_VAR_cluster_id"),
		},
		Policy: &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Resources: &sandboxv1.ResourceConstraints{
			DefaultCpu: "100m", DefaultMemory: "128Mi", MaxCpu: "1",
		}}},
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.awaitRunner()
	s.readEngineName()
}

// awaitRunner returns when the runner takes sandboxes.
func (s *system) awaitRunner() {
	s.t.Helper()
	c := s.client()
	eventually(s.t, "the runner is ready and connected", func() error {
		runner, err := c.Runners.GetManagedRunner(s.t.Context(), &sandboxv1.GetManagedRunnerRequest{RunnerId: s.getenv("TF_VAR_runner_id")})
		if err != nil {
			return err
		}
		if runner.GetConnectionStatus() != sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_CONNECTED ||
			runner.GetInstallStatus() != sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_READY {
			return fmt.Errorf("it is %s, %s: %v", runner.GetInstallStatus(), runner.GetConnectionStatus(), runner.GetInstallError())
		}
		return nil
	})
}

// eventually looks again and again, for a minute at most.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// result is how a command line ended.
type result struct {
	stdout, stderr string
	code           int
}

// run runs one command line of the program.
func (s *system) run(input string, arguments ...string) result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, filepath.Join(programs, "sandbar"), arguments...)
	command.Env, command.Stdin, command.Stdout, command.Stderr = s.env, strings.NewReader(input), &stdout, &stderr
	err := command.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		s.t.Errorf("sandbar %s: %v", strings.Join(arguments, " "), err)
	}
	return result{stdout: stdout.String(), stderr: stderr.String(), code: command.ProcessState.ExitCode()}
}

// must runs a command line that has to succeed, and returns its output.
func (s *system) must(arguments ...string) string {
	s.t.Helper()
	got := s.run("", arguments...)
	if got.code != 0 {
		s.t.Fatalf("sandbar %s ended with %d: %s", strings.Join(arguments, " "), got.code, got.stderr)
	}
	return got.stdout
}

// interrupt is a Ctrl-C; it returns when the system has ended.
func (s *system) interrupt() {
	s.t.Helper()
	if err := s.dev.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}
	if err := s.dev.Wait(); err != nil {
		s.t.Errorf("sandbar dev ended with %v:\n%s", err, s.log())
	}
	s.dev = nil
}

// crash kills the server's process, and nothing else.
func (s *system) crash() {
	s.t.Helper()
	if err := s.dev.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.dev.Wait()
	s.dev = nil
}

// end is for a test that has failed half way: whatever it left is ended, what
// was to be kept too.
func (s *system) end() {
	if s.dev == nil {
		return
	}
	s.interrupt()
	s.startDev()
	s.interrupt()
}

// runnerProcess is the PID of the runner's process.
func (s *system) runnerProcess() (int, error) {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range commands {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		arguments := strings.Split(string(content), "\x00")
		if len(arguments) > 2 && arguments[1] == "runner" && arguments[2] == "serve" && strings.Contains(string(content), s.directory) {
			var pid int
			_, err := fmt.Sscanf(path, "/proc/%d/cmdline", &pid)
			return pid, err
		}
	}
	return 0, errors.New("no runner process")
}

// killRunner kills the runner's process, which its supervisor starts again.
func (s *system) killRunner() {
	s.t.Helper()
	eventually(s.t, "there is a runner process to kill", func() error {
		pid, err := s.runnerProcess()
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	})
}

// nothingLeft fails when anything that the system made is still there.
func (s *system) nothingLeft() {
	s.t.Helper()
	marks := s.marks()
	eventually(s.t, "nothing is left", func() error {
		left, err := enginetest.Leftovers(s.before, marks...)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("left over:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// serveImages serves busybox:1 from a registry on loopback.
func serveImages(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	reference, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/library/busybox:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference, busyboxImage(t)); err != nil {
		t.Fatal(err)
	}
	return server.URL
}

func busyboxImage(t *testing.T) v1.Image {
	t.Helper()
	program, err := os.ReadFile(busybox())
	if err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	add := func(header *tar.Header, data []byte) {
		header.Size = int64(len(data))
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	for _, directory := range []string{"bin", "tmp", "etc", "proc", "sys", "dev"} {
		add(&tar.Header{Typeflag: tar.TypeDir, Name: directory + "/", Mode: 0o755}, nil)
	}
	add(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for _, applet := range []string{"sh", "cat", "sleep", "echo", "wc", "mv", "rm", "mkdir", "yes", "true", "head", "seq", "tty", "id"} {
		add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		t.Fatal(err)
	}
	return image
}
