package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

const (
	// rootVariable makes the test binary a guest: PID 1 of its own namespaces,
	// with that directory as its root.
	rootVariable   = "SANDBAR_TEST_ROOT"
	lingerVariable = "SANDBAR_TEST_LINGER"
	socketPath     = "/.sandbar/guest.sock"
	busybox        = "/bin/busybox"
	// commandPath, where it exists in the root, is run instead of the test
	// binary's own agent.
	commandPath = "/sandbar-guest"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(rootVariable); root != "" {
		os.Exit(guestMain(root))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		builds.remove()
		os.Exit(code)
	}))
}

// guestMain does what the sandbox's runtime does, and then what the command
// sandbar-guest does.
func guestMain(root string) int {
	if err := enterRoot(root); err != nil {
		fmt.Fprintln(os.Stderr, "enter root:", err)
		return 1
	}
	if _, err := os.Stat(commandPath); err == nil {
		fmt.Fprintln(os.Stderr, unix.Exec(commandPath, []string{commandPath, "--socket", socketPath}, nil))
		return 1
	}
	if err := Protect(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath, Net: "unix"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	listener.SetUnlinkOnClose(false)
	linger, _ := time.ParseDuration(os.Getenv(lingerVariable))
	os.Clearenv()
	agent := New(Config{Init: true, Linger: linger})
	if err := agent.Serve(context.Background(), listener); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := goleak.Find(goleak.IgnoreAnyFunction("os/signal.signal_recv")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return agent.ExitCode()
}

func enterRoot(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/small", "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	if err := unix.Mount("/etc/hosts", "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/readonly", "tmpfs", unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if err := unix.Mknod("/dev/tty", unix.S_IFCHR|0o666, int(unix.Mkdev(5, 0))); err != nil {
		return err
	}
	return unix.Mknod("/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
}

// sandbox is a guest that is really PID 1, in a root that holds nothing but
// busybox.
type sandbox struct {
	t      testing.TB
	root   string
	client *guest.Client
	cmd    *exec.Cmd
	stderr bytes.Buffer
	exited bool
}

// newSandbox makes a sandbox whose main process has not started.
func newSandbox(t testing.TB, environment ...string) *sandbox {
	t.Helper()
	return startSandbox(t, newRoot(t), environment...)
}

// newCommandSandbox is newSandbox with the real command as PID 1.
func newCommandSandbox(t testing.TB) *sandbox {
	t.Helper()
	root := newRoot(t)
	builds.install(t, commandPackage, filepath.Join(root, commandPath))
	return startSandbox(t, root)
}

// newRoot makes a root file system that holds nothing but busybox.
func newRoot(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make namespaces")
	}
	if _, err := os.Stat(busybox); err != nil {
		t.Skip("needs a static busybox at " + busybox)
	}
	// Not t.TempDir: the path of a socket is at most 107 bytes.
	root, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	fillRoot(t, root)
	return root
}

func startSandbox(t testing.TB, root string, environment ...string) *sandbox {
	t.Helper()
	s := &sandbox{t: t, root: root}
	s.client = guest.NewClient(s.dial)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(self)
	s.cmd.Env = append([]string{rootVariable + "=" + root}, environment...)
	s.cmd.Stderr = &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	s.eventually("the guest listens", func() bool { return s.client.Ping(t.Context()) == nil })
	// As the engine does.
	if err := os.Rename(filepath.Join(root, socketPath), s.hostSocket()); err != nil {
		t.Fatal(err)
	}
	return s
}

func fillRoot(t testing.TB, root string) {
	t.Helper()
	for _, dir := range []string{".sandbar", "bin", "dev/pts", "etc", "home/app", "proc", "readonly", "small", "tmp", "work"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for path, file := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"bin/busybox":     {string(program), 0o755},
		"bin/notrunnable": {"data", 0o644},
		"bin/badformat":   {"data", 0o755},
		"bin/badscript":   {"#!/no/such/interpreter\n", 0o755},
		"etc/hosts":       {"127.0.0.1 localhost\n", 0o644},
		"etc/passwd":      {"root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n", 0o644},
		"etc/group":       {"root:x:0:\napp:x:1001:\nextra:x:2000:app\n", 0o644},
	} {
		if err := os.WriteFile(filepath.Join(root, path), []byte(file.content), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, applet := range strings.Fields("sh cat echo sleep true false env id pwd ps stty seq head wc setsid kill readlink ulimit sort dd ls test printf touch tr mkfifo stat tty nohup yes usleep") {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/pts/ptmx", filepath.Join(root, "dev/ptmx")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/fd/1", filepath.Join(root, "dev/stdout")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/fd", filepath.Join(root, "dev/fd")); err != nil {
		t.Fatal(err)
	}
}

func (s *sandbox) hostSocket() string { return filepath.Join(s.root, ".sandbar", "moved") }

func (s *sandbox) dial(ctx context.Context) (net.Conn, error) {
	path := s.hostSocket()
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(s.root, socketPath)
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// end kills what is left and reports what the guest has to say.
func (s *sandbox) end() {
	if !s.exited {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	if s.stderr.Len() > 0 {
		s.t.Errorf("the guest said:\n%s", s.stderr.String())
	}
}

// wait returns the guest's own exit code.
func (s *sandbox) wait() int {
	s.t.Helper()
	_ = s.cmd.Wait()
	s.exited = true
	return s.cmd.ProcessState.ExitCode()
}

func (s *sandbox) eventually(what string, condition func() bool) {
	s.t.Helper()
	eventually(s.t, what, condition)
}

// eventually polls for what the test has no other way to learn.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		if condition() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("never true: %s", what)
}

func shell(script string) *guestv1.Process {
	return &guestv1.Process{Argv: []string{"/bin/sh", "-c", script}}
}

func command(argv ...string) *guestv1.Process { return &guestv1.Process{Argv: argv} }

// idle is a main process that does nothing until it is told to end.
func idle() *guestv1.Process { return shell(`trap "exit 0" TERM INT; sleep 100000 & wait`) }

// startIdle starts the idle main process.
func (s *sandbox) startIdle() *sandbox {
	s.t.Helper()
	if err := s.client.Start(s.t.Context(), &guestv1.Start{Process: idle()}); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the main process idles", func() bool { return len(s.processes()) == idleProcesses })
	return s
}

// idleProcesses are the shell and the sleep of the idle main process.
const idleProcesses = 2

func (s *sandbox) start(start *guestv1.Start) {
	s.t.Helper()
	if err := s.client.Start(s.t.Context(), start); err != nil {
		s.t.Fatal(err)
	}
}

// awaitOutput returns when the main process has said something, as it does
// when it is ready.
func (s *sandbox) awaitOutput() {
	s.t.Helper()
	err := s.client.FollowOutput(s.t.Context(), 0, func(*guestv1.Output) error { return io.EOF })
	if !errors.Is(err, io.EOF) {
		s.t.Fatal(err)
	}
}

// result is what an exec did.
type result struct {
	started *guestv1.Started
	stdout  string
	stderr  string
	frames  []string
	exit    *guestv1.Exit
}

func (s *sandbox) exec(process *guestv1.Process) result {
	s.t.Helper()
	return s.execWithStdin(process, nil)
}

// sh runs a script that must succeed and returns its output without the last
// line break.
func (s *sandbox) sh(script string) string {
	s.t.Helper()
	r := s.exec(shell(script))
	if r.exit.GetCode() != 0 {
		s.t.Fatalf("%s: exit %d, stderr %q", script, r.exit.GetCode(), r.stderr)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

func (s *sandbox) execWithStdin(process *guestv1.Process, stdin io.Reader) result {
	s.t.Helper()
	session, err := s.client.Exec(s.t.Context(), &guestv1.Exec{Process: process, Stdin: stdin != nil})
	if err != nil {
		s.t.Fatal(err)
	}
	defer session.Close()
	if stdin != nil {
		sent := make(chan error, 1)
		go func() {
			_, err := io.Copy(session, stdin)
			if err == nil {
				err = session.CloseStdin()
			}
			sent <- err
		}()
		defer func() {
			if err := <-sent; err != nil {
				s.t.Error(err)
			}
		}()
	}
	return collect(s.t, session)
}

// collect receives a session to its end.
func collect(t testing.TB, session *guest.ExecSession) result {
	t.Helper()
	r := result{started: session.Started()}
	var stdout, stderr strings.Builder
	for {
		response, err := session.Recv()
		if err == io.EOF {
			r.stdout, r.stderr = stdout.String(), stderr.String()
			if r.exit == nil {
				t.Fatal("ended without an exit")
			}
			return r
		}
		if err != nil {
			t.Fatal(err)
		}
		if exit := response.GetExit(); exit != nil {
			r.exit = exit
			continue
		}
		output := response.GetOutput()
		r.frames = append(r.frames, string(output.GetData()))
		if output.GetStream() == 1 {
			stdout.Write(output.GetData())
		} else {
			stderr.Write(output.GetData())
		}
	}
}

// waitForExit watches until the main process has ended.
func (s *sandbox) waitForExit() *guestv1.Status {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var last *guestv1.Status
	err := s.client.Watch(ctx, func(status *guestv1.Status) error {
		last = status
		if status.GetExit() != nil {
			return io.EOF
		}
		return nil
	})
	if err != io.EOF {
		s.t.Fatal(err)
	}
	return last
}

// processes lists the command lines of all processes in the sandbox but PID 1,
// read from outside; zombies are "<defunct>".
func (s *sandbox) processes() []string {
	s.t.Helper()
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid_for_children", s.cmd.Process.Pid))
	if err != nil {
		return nil
	}
	var found []string
	entries, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, entry := range entries {
		dir := filepath.Dir(filepath.Dir(entry))
		if other, err := os.Readlink(entry); err != nil || other != namespace || dir == fmt.Sprintf("/proc/%d", s.cmd.Process.Pid) {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		if parsed, ok := parseStat(stat); ok && parsed.state == 'Z' {
			found = append(found, "<defunct>")
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		found = append(found, strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " ")))
	}
	return found
}

func (s *sandbox) isRunning(commandLine string) bool {
	s.t.Helper()
	for _, process := range s.processes() {
		if process == commandLine {
			return true
		}
	}
	return false
}
