package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// rawRuntime runs containers with the bare runtime: no network set-up, no
// image, no agent.
type rawRuntime struct {
	name      string
	directory string
	flags     []string
}

func newRawRuntime(name string) (*rawRuntime, error) {
	directory, err := os.MkdirTemp("", "sandbar-bench-raw-")
	if err != nil {
		return nil, err
	}
	r := &rawRuntime{name: name, directory: directory, flags: []string{"--root", filepath.Join(directory, "state")}}
	if name == "runsc" {
		r.flags = append(r.flags, "--platform=systrap", "--network=none")
	}
	if err := makeRootFS(filepath.Join(directory, "rootfs")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	return r, nil
}

func (r *rawRuntime) close() { _ = os.RemoveAll(r.directory) }

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
			CgroupsPath: "/sandbar-bench-raw/" + id,
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
	cmd := exec.CommandContext(ctx, r.name, append(r.flags, args...)...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %v: %w", r.name, args, err)
	}
	return nil
}

// start leaves a container running `sleep`.
func (r *rawRuntime) start(ctx context.Context, id string) error {
	bundle, err := r.bundle(id, "/bin/sleep", "100000")
	if err != nil {
		return err
	}
	return r.command(ctx, "run", "--detach", "--bundle", bundle, id)
}

func (r *rawRuntime) remove(ctx context.Context, id string) error {
	return r.command(ctx, "delete", "--force", id)
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
