package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// rawRuntime runs containers with the bare runtime: no network set-up, no
// image, no agent, no filter of system calls.
type rawRuntime struct {
	name      string
	directory string
	// group is the cgroup that its containers are in.
	group string
	flags []string

	mu   sync.Mutex
	live map[string]struct{}
}

func newRawRuntime(name, group string) (*rawRuntime, error) {
	directory, err := os.MkdirTemp("", "sandbar-bench-raw-")
	if err != nil {
		return nil, err
	}
	r := &rawRuntime{
		name: name, directory: directory, group: group,
		flags: []string{"--root", filepath.Join(directory, "state")}, live: map[string]struct{}{},
	}
	if name == "runsc" {
		r.flags = append(r.flags, "--platform=systrap", "--network=none")
	}
	if err := makeRootFS(filepath.Join(directory, "rootfs")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	return r, nil
}

// close removes the containers that are left, what the runtime has mounted in
// its own directory (runsc: a network namespace), and the cgroups.
func (r *rawRuntime) close() error {
	errs := []error{r.removeAll()}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, r.directory+"/"), false
	})
	errs = append(errs, err)
	for _, mount := range slices.Backward(mounts) {
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
		}
	}
	errs = append(errs, os.RemoveAll(r.directory))
	hierarchies, err := groupsBelow(cgroupRoot)
	errs = append(errs, err)
	for _, hierarchy := range append(hierarchies, "") {
		errs = append(errs, removeGroup(filepath.Join(cgroupRoot, hierarchy, r.group)))
	}
	return errors.Join(errs...)
}

// bundle writes a bundle that runs args and returns its path.
func (r *rawRuntime) bundle(id string, args ...string) (string, error) {
	directory := filepath.Join(r.directory, "bundles", id)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return "", err
	}
	spec := specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}, NoNewPrivileges: true},
		Root:    &specs.Root{Path: filepath.Join(r.directory, "rootfs"), Readonly: true},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + r.group + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace},
			},
		},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return directory, os.WriteFile(filepath.Join(directory, "config.json"), data, 0o600)
}

// command runs the runtime. Its output goes nowhere: a container that stays
// would hold a pipe open.
func (r *rawRuntime) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.name, append(slices.Clone(r.flags), args...)...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %v: %w", r.name, args, err)
	}
	return nil
}

// run runs a container from its start to its end.
func (r *rawRuntime) run(ctx context.Context, id, bundle string) error {
	r.note(id)
	if err := r.command(ctx, "run", "--bundle", bundle, id); err != nil {
		return err
	}
	r.forget(id)
	return nil
}

// start leaves a container running `sleep`.
func (r *rawRuntime) start(ctx context.Context, id string) error {
	bundle, err := r.bundle(id, "/bin/sleep", "100000")
	if err != nil {
		return err
	}
	r.note(id)
	return r.command(ctx, "run", "--detach", "--bundle", bundle, id)
}

func (r *rawRuntime) note(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[id] = struct{}{}
}

func (r *rawRuntime) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, id)
}

// removeAll removes every container that is there, or half there.
func (r *rawRuntime) removeAll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for id := range r.live {
		if err := r.command(context.Background(), "delete", "--force", id); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(r.live, id)
	}
	return errors.Join(errs...)
}

// makeRootFS makes a root file system of the host's static busybox.
func makeRootFS(directory string) error {
	for _, name := range []string{"bin", "proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(directory, name), 0o755); err != nil {
			return err
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("the floor needs Debian's busybox-static: %w", err)
	}
	target := filepath.Join(directory, "bin", "busybox")
	if err := os.WriteFile(target, busybox, 0o755); err != nil {
		return err
	}
	for _, applet := range []string{"sh", "sleep", "true"} {
		if err := os.Symlink("busybox", filepath.Join(directory, "bin", applet)); err != nil {
			return err
		}
	}
	return nil
}
