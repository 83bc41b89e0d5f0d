package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/guest"
)

const (
	intruderPath = "/intruder"
	// A bundle's directory is named after this, the runtime, the test's process
	// and a random number, and so is its container.
	bundlePrefix = "sandbar-guest-test-"
)

// containerRuntime is a program that runs containers.
type containerRuntime struct {
	path    string
	options []string
	// keepsInit says that PID 1 can neither be killed nor stopped from within
	// its container. gVisor does not see to that.
	keepsInit bool
}

// bundle is one container on disk, and the runtime it is for.
type bundle struct {
	dir     string
	runtime containerRuntime
}

func (b *bundle) id() string     { return filepath.Base(b.dir) }
func (b *bundle) export() string { return filepath.Join(b.dir, "export") }
func (b *bundle) socket() string { return filepath.Join(b.dir, "private", "guest.sock") }

func (b *bundle) command(arguments ...string) *exec.Cmd {
	global := append([]string{"--root", filepath.Join(b.dir, "state")}, b.runtime.options...)
	return exec.Command(b.runtime.path, append(global, arguments...)...)
}

// remove ends the container and removes everything of it.
func (b *bundle) remove() error {
	// That it is gone already is no error.
	_ = b.command("delete", "--force", b.id()).Run()
	return removeBundle(b.dir)
}

// removeBundle removes a bundle whose container has ended. gVisor leaves a
// mounted network namespace in its state.
func removeBundle(dir string) error {
	mounts, err := filepath.Glob(filepath.Join(dir, "state", "*netns*"))
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		_ = unix.Unmount(mount, unix.MNT_DETACH)
	}
	return os.RemoveAll(dir)
}

// removeAbandoned removes the bundles of test processes that were killed.
func removeAbandoned(t *testing.T, runtime containerRuntime) {
	t.Helper()
	prefix := bundlePrefix + filepath.Base(runtime.path) + "-"
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		pid, err := strconv.Atoi(owner)
		if err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		abandoned := bundle{dir: dir, runtime: runtime}
		if err := abandoned.remove(); err != nil {
			t.Logf("remove %s: %v", dir, err)
		}
	}
}

// runContainer makes a sandbox in a container runtime.
func runContainer(t *testing.T, runtime containerRuntime) *sandbox {
	t.Helper()
	root := newRoot(t)
	builds.install(t, commandPackage, filepath.Join(root, commandPath))
	builds.install(t, intruderPackage, filepath.Join(root, intruderPath))
	removeAbandoned(t, runtime)
	b := newBundle(t, root, runtime)
	said, err := os.Create(filepath.Join(b.dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	s := &sandbox{t: t, root: root}
	s.cmd = b.command("run", "-bundle", b.dir, b.id())
	s.cmd.Stdout, s.cmd.Stderr = said, said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("the runtime said: %s", text)
		}
		_ = b.command("delete", "--force", b.id()).Run()
		if !s.exited {
			s.wait()
		}
	})
	made := filepath.Join(b.export(), filepath.Base(socketPath))
	s.client = guest.NewClient(dialer(made))
	s.eventually("the guest listens", func() bool { return s.client.Ping(t.Context()) == nil })
	// As the engine does.
	if err := os.Rename(made, b.socket()); err != nil {
		t.Fatal(err)
	}
	s.client = guest.NewClient(dialer(b.socket()))
	return s
}

func dialer(path string) guest.DialFunc {
	return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) }
}

// newBundle makes a bundle, which the test's end removes.
func newBundle(t *testing.T, root string, runtime containerRuntime) *bundle {
	t.Helper()
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%s-%d-", bundlePrefix, filepath.Base(runtime.path), os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	b := &bundle{dir: dir, runtime: runtime}
	t.Cleanup(func() {
		if err := b.remove(); err != nil {
			t.Error(err)
		}
	})
	for _, path := range []string{b.export(), filepath.Dir(b.socket())} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config, err := json.Marshal(b.config(root))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// config gives the sandbox the engine's default capabilities and, so that the
// guest's own protection is all there is, no seccomp filter.
func (b *bundle) config(root string) *specs.Spec {
	capabilities := []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
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
			{Destination: filepath.Dir(socketPath), Type: "bind", Source: b.export(), Options: []string{"rbind", "rw"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + b.id(),
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
