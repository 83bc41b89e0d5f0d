package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/guest/agent"
)

// fakeEngine runs the real guest as PID 1 of a namespace of its own, on the
// machine's own root file system. Everything it knows is on disk, so that
// another process's fakeEngine finds it. It enforces nothing.
type fakeEngine struct {
	dir string

	mu sync.Mutex
	// images by reference; the error wins.
	images map[string]engine.Image
	broken map[string]error
	// pulling, if set, holds every pull until it is closed.
	pulling chan struct{}
	// oomKills is what Usage says.
	oomKills int64
	// disk is what Disk says; zero: nearly empty. held is what DiskUsage says.
	disk func() engine.Disk
	held map[string]engine.DiskUsage
	// removals, if set, makes that many calls of Remove fail.
	failRemovals int
}

const (
	fakeImage  = "docker.io/library/busybox:1"
	fakeDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
)

func newFakeEngine(dir string) *fakeEngine {
	return &fakeEngine{
		dir: dir,
		images: map[string]engine.Image{fakeImage: {
			Digest:     fakeDigest,
			References: []string{fakeImage},
			SizeBytes:  1 << 20,
			Config: engine.ImageConfig{
				Entrypoint: []string{"/bin/sh", "-c"},
				Cmd:        []string{"exec sleep 1000"},
				Env:        []string{"PATH=" + defaultPath, "FROM=image", "KEPT=image"},
				WorkingDir: "/tmp",
			},
		}},
		broken: map[string]error{
			"docker.io/library/missing:1": fakePullError("missing:1", "404 Not Found", engine.ErrImageNotFound),
			"docker.io/library/down:1":    fakePullError("down:1", "connection refused", engine.ErrRegistryUnavailable),
		},
	}
}

func fakePullError(reference, cause string, err error) error {
	return &engine.PullError{Reference: reference, Attempts: []engine.PullAttempt{{
		Address: "https://registry.example", Cause: cause, Hint: "do something about it", Err: err,
	}}}
}

const (
	guestSocketVariable = "SANDBAR_TEST_GUEST_SOCKET"
	fakeLabels          = "labels.json"
	fakePid             = "pid"
	fakeSocket          = "s"

	goAheadDescriptor = 3
)

// guestMain is the guest: PID 1 of its own namespaces.
func guestMain(socket string) int {
	// Without the go-ahead nobody knows of this process: its engine has died.
	if n, _ := os.NewFile(goAheadDescriptor, "go-ahead").Read(make([]byte, 1)); n == 0 {
		return 1
	}
	steps := []error{
		unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		agent.Protect(),
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err := errors.Join(append(steps, err)...); err != nil {
		fmt.Fprintln(os.Stderr, "fake guest:", err)
		return 1
	}
	listener.SetUnlinkOnClose(false)
	os.Clearenv()
	guest := agent.New(agent.Config{Init: true})
	if err := guest.Serve(context.Background(), listener); err != nil {
		fmt.Fprintln(os.Stderr, "fake guest:", err)
		return 1
	}
	return guest.ExitCode()
}

func (f *fakeEngine) path(id string, name ...string) string {
	return filepath.Join(append([]string{f.dir, id}, name...)...)
}

func (f *fakeEngine) Info(context.Context) (engine.Info, error) {
	return engine.Info{
		Runtime: "fake", RuntimeVersion: "1", Architecture: "amd64", CPUMillis: 4000, MemoryBytes: 8 << 30,
	}, nil
}

func (f *fakeEngine) PullImage(ctx context.Context, req engine.PullRequest, _ func(engine.PullProgress)) (engine.Image, error) {
	f.mu.Lock()
	pulling, broken := f.pulling, f.broken[req.Reference]
	image, ok := f.images[req.Reference]
	f.mu.Unlock()
	if pulling != nil {
		select {
		case <-pulling:
		case <-ctx.Done():
			return engine.Image{}, ctx.Err()
		}
	}
	if broken != nil {
		return engine.Image{}, broken
	}
	if !ok {
		return engine.Image{}, engine.ErrImageNotFound
	}
	return image, ctx.Err()
}

func (f *fakeEngine) Images(context.Context) ([]engine.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []engine.Image
	for _, image := range f.images {
		all = append(all, image)
	}
	return all, nil
}

func (f *fakeEngine) PruneImages(ctx context.Context) ([]engine.Image, error) {
	all, err := f.Images(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images = nil
	return all, err
}

func (f *fakeEngine) Create(ctx context.Context, spec engine.Spec) error {
	if err := os.Mkdir(f.path(spec.ID), 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return engine.ErrExists
		}
		return err
	}
	err := f.create(ctx, spec)
	if err != nil {
		err = errors.Join(err, f.Remove(context.WithoutCancel(ctx), spec.ID))
	}
	return err
}

func (f *fakeEngine) create(ctx context.Context, spec engine.Spec) error {
	labels, err := json.Marshal(spec.Labels)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.path(spec.ID, fakeLabels), labels, 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := exec.Command(self)
	command.Env = []string{guestSocketVariable + "=" + f.path(spec.ID, fakeSocket)}
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true}
	goAhead, give, err := os.Pipe()
	if err != nil {
		return err
	}
	defer give.Close()
	defer goAhead.Close()
	command.ExtraFiles = []*os.File{goAhead}
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }() // collects the guest; ends with it
	pid := fmt.Sprintf("%d %s", command.Process.Pid, startTime(command.Process.Pid))
	if err := os.WriteFile(f.path(spec.ID, fakePid), []byte(pid), 0o600); err != nil {
		return err
	}
	if _, err := give.Write([]byte{1}); err != nil {
		return err
	}
	for {
		conn, err := f.Dial(ctx, spec.ID)
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}

// startTime tells processes with one number apart.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// guestFile is a descriptor of the guest's process, or nil when it has gone.
func (f *fakeEngine) guestProcess(id string) (pidfd int, err error) {
	if _, err := os.Stat(f.path(id)); errors.Is(err, os.ErrNotExist) {
		return 0, engine.ErrNotFound
	}
	data, err := os.ReadFile(f.path(id, fakePid))
	number, started, _ := strings.Cut(string(data), " ")
	pid, convErr := strconv.Atoi(number)
	if err != nil || convErr != nil {
		return 0, engine.ErrNotRunning
	}
	pidfd, err = unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, engine.ErrNotRunning
	}
	if started == "" || startTime(pid) != started {
		return 0, errors.Join(engine.ErrNotRunning, unix.Close(pidfd))
	}
	return pidfd, nil
}

func (f *fakeEngine) Dial(ctx context.Context, id string) (net.Conn, error) {
	pidfd, err := f.guestProcess(id)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pidfd)
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", f.path(id, fakeSocket))
}

func (f *fakeEngine) Wait(ctx context.Context, id string) (engine.Exit, error) {
	pidfd, err := f.guestProcess(id)
	if errors.Is(err, engine.ErrNotRunning) {
		return engine.Exit{Time: time.Now()}, nil
	}
	if err != nil {
		return engine.Exit{}, err
	}
	defer unix.Close(pidfd)
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 20)
		if n > 0 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return engine.Exit{Time: time.Now(), OOMKilled: f.oomKills > 0}, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return engine.Exit{}, err
		}
	}
	return engine.Exit{}, ctx.Err()
}

func (f *fakeEngine) Usage(context.Context, string) (engine.Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return engine.Usage{OOMKills: f.oomKills}, nil
}

func (f *fakeEngine) Disk(context.Context) (engine.Disk, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disk != nil {
		return f.disk(), nil
	}
	return engine.Disk{TotalBytes: 100 << 30, FreeBytes: 90 << 30}, nil
}

func (f *fakeEngine) DiskUsage(_ context.Context, id string) (engine.DiskUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[id], nil
}

func (f *fakeEngine) Remove(ctx context.Context, id string) error {
	f.mu.Lock()
	fail := f.failRemovals > 0
	if fail {
		f.failRemovals--
	}
	f.mu.Unlock()
	if fail {
		return errors.New("the fake engine was told to fail")
	}
	pidfd, err := f.guestProcess(id)
	if err == nil {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		_ = unix.Close(pidfd)
		if _, err := f.Wait(ctx, id); err != nil {
			return err
		}
	}
	return os.RemoveAll(f.path(id))
}

func (f *fakeEngine) List(context.Context) ([]engine.Sandbox, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var all []engine.Sandbox
	for _, entry := range entries {
		found := engine.Sandbox{ID: entry.Name(), State: engine.StateRunning}
		pidfd, err := f.guestProcess(found.ID)
		switch {
		case err == nil:
			_ = unix.Close(pidfd)
			if _, err := os.Stat(f.path(found.ID, fakeSocket)); err != nil {
				found.State = engine.StateBroken
			}
		case errors.Is(err, engine.ErrNotFound):
			continue
		default:
			found.State = engine.StateExited
			if _, err := os.Stat(f.path(found.ID, fakePid)); err != nil {
				found.State = engine.StateBroken
			}
		}
		all = append(all, found)
	}
	return all, nil
}

func (f *fakeEngine) Close() error                    { return nil }
func (f *fakeEngine) Uninstall(context.Context) error { return nil }
