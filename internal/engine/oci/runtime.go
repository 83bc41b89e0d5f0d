package oci

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// runtimeKind is what sets one OCI runtime apart from another.
type runtimeKind struct {
	name    string
	install string
	// global are the options before the command.
	global []string
	// isolatedGlobal are further options for a sandbox without a network.
	isolatedGlobal []string
	// userspaceKernel: the runtime is a kernel of its own (gVisor). Its own
	// threads and memory count against a sandbox's limits, and what the host's
	// kernel would need to be told (seccomp, masked paths) it does by itself.
	userspaceKernel bool
}

// runtimeKinds are in order of preference.
func runtimeKinds() []runtimeKind {
	return []runtimeKind{
		{
			name:    "runsc",
			install: "gVisor's runsc (https://gvisor.dev/docs/user_guide/install/)",
			global: []string{
				"--platform=systrap",
				// The guest binds its socket in a directory of the host's.
				"--host-uds=all",
				// Writes go to the sandbox's upper directory, as with the other
				// runtimes: they count as disk and not as memory, and can be seen
				// from the host.
				"--overlay2=none",
				"--directfs=true",
			},
			isolatedGlobal:  []string{"--network=none"},
			userspaceKernel: true,
		},
		{name: "crun", install: "crun (Debian: apt-get install crun)"},
		{name: "runc", install: "runc (Debian: apt-get install runc)"},
	}
}

func findRuntimeKind(name string) *runtimeKind {
	for _, kind := range runtimeKinds() {
		if kind.name == name {
			return &kind
		}
	}
	return nil
}

// ociRuntime runs sandboxes with one binary.
type ociRuntime struct {
	runtimeKind
	path    string
	version string
	// hideUnified runs the runtime in a mount namespace without the unified
	// hierarchy: crun refuses hybrid mode otherwise.
	hideUnified string
}

// systemPath is where runtimes are looked for beside PATH, which need not have
// the administrator's directories.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func lookRuntime(name, systemDirectories string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range filepath.SplitList(systemDirectories) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: not found in PATH or in %s", name, systemDirectories)
}

// openRuntime finds a runtime's binary and its version; whether it works here
// is for a probe to say.
func openRuntime(ctx context.Context, kind runtimeKind, config Config, groups cgroups) (*ociRuntime, error) {
	path := config.RuntimePath
	if path == "" {
		found, err := lookRuntime(kind.name, config.systemDirectories)
		if err != nil {
			return nil, err
		}
		path = found
	}
	r := &ociRuntime{runtimeKind: kind, path: path}
	output, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", path, err)
	}
	// "runc version 1.1.5", "runsc version release-…", "crun version 1.8.1".
	first, _, _ := strings.Cut(string(output), "\n")
	r.version = strings.TrimSpace(first[strings.LastIndexByte(strings.TrimSpace(first), ' ')+1:])
	if r.version == "VERSION_MISSING" {
		// A runsc built from its Go module; the module knows its version.
		if info, err := buildinfo.ReadFile(path); err == nil {
			r.version = info.Main.Version
		}
	}
	if kind.name == "crun" && groups.hybrid {
		for _, h := range groups.hierarchies {
			if h.unified {
				r.hideUnified = h.mountpoint
			}
		}
	}
	return r, nil
}

// run starts the sandbox whose bundle lies in dir, and returns the host's PID of
// its first process. It does not wait for that process.
func (r *ociRuntime) run(ctx context.Context, dir directory, id string, isolated bool) (int, error) {
	args := []string{r.path, "--root", dir.runtime(), "--log", dir.log(), "--log-format", "json"}
	args = append(args, r.global...)
	if isolated {
		args = append(args, r.isolatedGlobal...)
	}
	args = append(args, "run", "--detach", "--bundle", dir.bundle(), "--pid-file", dir.pidFile(), id)
	if r.hideUnified != "" {
		args = append([]string{"/bin/sh", "-c", `umount "$0" && exec "$@"`, r.hideUnified}, args...)
	}
	if err := r.exec(ctx, args); err != nil {
		return 0, fmt.Errorf("%s run: %w", r.name, r.explain(dir, err))
	}
	data, err := os.ReadFile(dir.pidFile())
	if err != nil {
		return 0, fmt.Errorf("%s run: read the PID: %w", r.name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s run: parse the PID: %w", r.name, err)
	}
	return pid, nil
}

// exec runs a command that dies with this process, so that a killed engine
// leaves no runtime at work behind the back of its successor. The sandbox
// inherits the standard streams, so these are /dev/null.
func (r *ociRuntime) exec(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + systemPath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if r.hideUnified != "" {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	// The death signal is sent when the thread that started the child ends, so
	// that thread has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// explain adds what the runtime logged to the error of its exit.
func (r *ociRuntime) explain(dir directory, err error) error {
	data, readErr := os.ReadFile(dir.log())
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		return errors.Join(err, readErr)
	}
	var said string
	for line := range bytes.Lines(data) {
		var entry struct {
			Level   string `json:"level"`
			Message string `json:"msg"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Message != "" && (entry.Level == "error" || entry.Level == "fatal" || said == "") {
			said = entry.Message
		}
	}
	if said == "" {
		return err
	}
	if strings.Contains(said, "no space left on device") {
		return fmt.Errorf("%w: %s: %w", err, said, engine.ErrNoSpace)
	}
	return fmt.Errorf("%w: %s", err, said)
}
