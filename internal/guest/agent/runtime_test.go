package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

// TestTheCommandWorksInEveryRuntime runs the real command, as a sandbox does,
// in the container runtimes that this machine has.
func TestTheCommandWorksInEveryRuntime(t *testing.T) {
	for name, options := range map[string][]string{
		"runc":  nil,
		"runsc": {"--host-uds=all", "--network=none", "--ignore-cgroups", "--platform=systrap"},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("%s is not installed", name)
			}
			checkContainer(t, runContainer(t, path, options))
			checkDeadline(t, runContainer(t, path, options))
		})
	}
}

func checkContainer(t *testing.T, s *sandbox) {
	t.Helper()
	s.start(&guestv1.Start{
		Process: shell(`cat /work/file; echo err >&2; trap "exit 4" TERM; while true; do sleep 0.05; done`),
		Files:   []*guestv1.File{{Path: "/work/file", Content: []byte("from a file\n")}},
	})
	if r := s.exec(command("echo", "hello")); r.stdout != "hello\n" || len(r.frames) != 1 || r.exit.GetCode() != 0 {
		t.Errorf("echo: %+v", r)
	}
	if r := s.exec(command("nothing")); r.exit.GetCode() != 127 || r.stderr == "" {
		t.Errorf("no such program: %+v", r)
	}
	if r := s.exec(shellAs("app", "id -u; id -g; id -G; echo again > /dev/stdout")); r.stdout != "1000\n1001\n1001 2000\nagain\n" {
		t.Errorf("user: %+v", r)
	}
	if r := s.execWithStdin(command("cat"), strings.NewReader("to stdin")); r.stdout != "to stdin" {
		t.Errorf("stdin: %+v", r)
	}
	if r := s.exec(terminal("sh", "-c", "stty size; test -t 0 && echo terminal")); r.stdout != "30 100\r\nterminal\r\n" {
		t.Errorf("terminal: %+v", r)
	}
	session := s.execOnTerminal(terminal("cat"))
	if _, err := session.Write([]byte("line\n")); err != nil {
		t.Fatal(err)
	}
	if err := session.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, session); !strings.Contains(r.stdout, "line\r\n") || r.exit.GetCode() != 0 {
		t.Errorf("end of a terminal's input: %+v", r)
	}
	if err := s.write("/tmp/new/file", 0o600, "written"); err != nil {
		t.Errorf("write: %v", err)
	}
	if got, err := s.read("/tmp/new/file", 0); err != nil || got != "written" {
		t.Errorf("read: %q, %v", got, err)
	}
	if got := s.sh("stat -c '%a %u' /tmp/new/file"); got != "600 0" {
		t.Errorf("the file is %q", got)
	}
	for _, secret := range []string{"/proc/1/environ", "/proc/1/mem", "/proc/1/maps"} {
		if r := s.exec(shellAs("app", "head -c 1 "+secret)); r.exit.GetCode() == 0 && r.stdout != "" {
			t.Errorf("the workload can read %s", secret)
		}
	}
	checkKill(t, s)
	if err := s.client.Stop(t.Context(), lingerTime*10); err != nil {
		t.Fatal(err)
	}
	if exit := s.waitForExit().GetExit(); exit.GetCode() != 4 {
		t.Errorf("exit %v", exit)
	}
	// Two pipes have no order between them.
	got := slices.Sorted(strings.Lines(textOf(s.followed(0))))
	if want := []string{"err\n", "from a file\n"}; !slices.Equal(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
	if err := s.client.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if code := s.wait(); code != 4 {
		t.Errorf("the runtime reports exit code %d", code)
	}
}

func checkDeadline(t *testing.T, s *sandbox) {
	t.Helper()
	s.start(&guestv1.Start{Process: command("sleep", "5002"), GraceMillis: 60_000, Deadline: timestamppb.New(time.Now().Add(time.Second))})
	if status := s.waitForExit(); !status.GetDeadlineExceeded() || status.GetExit().GetCode() != 143 {
		t.Errorf("at the deadline: %v", status)
	}
	if err := s.client.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	s.wait()
}

// checkKill cancels an exec that left a daemon and does not read its stdin.
func checkKill(t *testing.T, s *sandbox) {
	t.Helper()
	const count = `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $f; echo; done 2>/dev/null | busybox grep -c '^sleep 5001'; true`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	session, err := s.client.Exec(ctx, &guestv1.Exec{Process: shell("(setsid sleep 5001 &); sleep 5001"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	s.eventually("both run", func() bool { return s.sh(count) == "2" })
	cancel()
	s.eventually("both are gone", func() bool { return s.sh(count) == "0" })
}

// runContainer makes a sandbox in a container runtime.
func runContainer(t *testing.T, path string, options []string) *sandbox {
	t.Helper()
	root := newRoot(t)
	buildCommand(t, filepath.Join(root, commandPath))
	bundle, err := os.MkdirTemp("", "bundle")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(bundle) })
	export := filepath.Join(bundle, "export")
	if err := os.Mkdir(export, 0o700); err != nil {
		t.Fatal(err)
	}
	var random [8]byte
	_, _ = rand.Read(random[:])
	id := "sandbar-guest-test-" + hex.EncodeToString(random[:])
	config, err := json.Marshal(containerConfig(root, export, id))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{"--root", filepath.Join(bundle, "state")}, options...)
	said, err := os.Create(filepath.Join(bundle, "said"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = said.Close() })
	s := &sandbox{t: t, root: root}
	s.cmd = exec.Command(path, append(arguments, "run", "-bundle", bundle, id)...)
	s.cmd.Stdout, s.cmd.Stderr = said, said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("the runtime said: %s", text)
		}
		_ = exec.Command(path, append(arguments, "delete", "--force", id)...).Run()
		if !s.exited {
			_ = s.cmd.Wait()
			s.exited = true
		}
	})
	s.client = guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(export, "guest.sock"))
	})
	s.eventually("the guest listens", func() bool { return s.client.Ping(t.Context()) == nil })
	return s
}

func containerConfig(root, export, id string) *specs.Spec {
	capabilities := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
		"CAP_MKNOD", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE",
	}
	return &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			Args: []string{commandPath, "--socket", socketPath},
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			NoNewPrivileges: true,
		},
		Root: &specs.Root{Path: root},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: filepath.Dir(socketPath), Type: "bind", Source: export, Options: []string{"rbind", "rw"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace},
			},
		},
	}
}
