package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/cli/invocation"
)

// freeBytes is the least that must be free before the first start; one image of a
// language fills most of it.
const freeBytes = 1 << 30

// runtimes are looked for in this order.
var runtimes = []string{"runsc", "crun", "runc"}

// programs are what the system is made of.
type programs struct {
	sandbar string
	guest   string
	// runtime as the user named it; empty leaves the choice to the runner.
	runtime string
}

// check looks at everything that must be right before anything is changed, and
// answers with the first thing that is not and what to do about it.
func check(ctx context.Context, options Options) (programs, error) {
	if os.Geteuid() != 0 {
		return programs{}, errors.New("sandbar dev needs root, since it makes network namespaces and cgroups: run it with sudo")
	}
	found, err := findPrograms(options)
	if err != nil {
		return programs{}, err
	}
	for _, mirror := range options.RegistryMirrors {
		if err := checkMirror(mirror); err != nil {
			return programs{}, err
		}
	}
	if err := checkDisk(options); err != nil {
		return programs{}, err
	}
	// Before the port: when another process serves this very directory, that is
	// what one wants to hear.
	if err := checkUnused(options.DataDir); err != nil {
		return programs{}, err
	}
	return found, checkPort(ctx, options.Listen)
}

func findPrograms(options Options) (programs, error) {
	found := programs{runtime: options.Runtime, guest: options.Guest}
	if err := checkRuntime(options.Runtime); err != nil {
		return programs{}, err
	}
	var err error
	if found.sandbar, err = os.Executable(); err != nil {
		return programs{}, fmt.Errorf("find this program's own file: %w", err)
	}
	if found.sandbar, err = filepath.EvalSymlinks(found.sandbar); err != nil {
		return programs{}, fmt.Errorf("find this program's own file: %w", err)
	}
	if found.guest == "" {
		found.guest = filepath.Join(filepath.Dir(found.sandbar), "sandbar-guest")
	}
	if found.guest, err = filepath.Abs(found.guest); err != nil {
		return programs{}, fmt.Errorf("find sandbar-guest: %w", err)
	}
	info, err := os.Stat(found.guest)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return programs{}, fmt.Errorf("%s is not there or is no program: build it beside this one (make build), or name it with --guest", found.guest)
	}
	return found, nil
}

func checkRuntime(wanted string) error {
	if wanted != "" {
		if !slices.Contains(runtimes, wanted) {
			return invocation.Usagef("--runtime %q: it must be one of %s, found in PATH", wanted, strings.Join(runtimes, ", "))
		}
		if _, err := exec.LookPath(wanted); err != nil {
			return fmt.Errorf("the OCI runtime %q is not installed: install it, or choose another with --runtime (%s)", wanted, strings.Join(runtimes, ", "))
		}
		return nil
	}
	if installedRuntime() != "" {
		return nil
	}
	return fmt.Errorf("no OCI runtime is installed: one of %s is needed in PATH; on Debian: apt-get install runc", strings.Join(runtimes, ", "))
}

// installedRuntime is the first that is in PATH; empty when there is none.
func installedRuntime() string {
	for _, name := range runtimes {
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	return ""
}

// isolation says what keeps sandboxes from this machine, given the runtime that
// the user named.
func isolation(named string) string {
	switch {
	case named == "runsc", named == "" && installedRuntime() == "runsc":
		return "gVisor (runsc), a kernel of their own"
	case named == "":
		return "this machine's kernel: install gVisor's runsc in PATH for a stronger wall around them"
	}
	return "this machine's kernel (" + named + ")"
}

func checkMirror(text string) error {
	registry, address, ok := strings.Cut(text, "=")
	if !ok || registry == "" || !strings.HasPrefix(address, "http://") && !strings.HasPrefix(address, "https://") {
		return invocation.Usagef("--registry-mirror %q: it must be REGISTRY=URL, like docker.io=http://127.0.0.1:5000", text)
	}
	return nil
}

func checkDisk(options Options) error {
	existing, err := nearestExisting(options.DataDir)
	if err != nil {
		return err
	}
	var space unix.Statfs_t
	if err := unix.Statfs(existing, &space); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", existing, err)
	}
	if space.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("%s is on a file system that cannot be written to: choose another --data-dir", existing)
	}
	if used, err := inUse(options.DataDir); err != nil || used {
		// On a full disk one has to get at one's sandboxes, to delete some.
		return err
	}
	free, needed := space.Bavail*uint64(space.Bsize), uint64(freeBytes)
	if options.DiskReserve > 0 {
		needed = uint64(options.DiskReserve)
	}
	if free < needed {
		return fmt.Errorf("only %d MiB are free on the disk of %s and at least %d are needed: free some, choose another --data-dir, or keep less free with --disk-reserve", free>>20, existing, needed>>20)
	}
	return nil
}

// inUse: an earlier start has made the directory its own.
func inUse(directory string) (bool, error) {
	_, err := os.Stat(filepath.Join(directory, "server", "sandbar.db"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// nearestExisting is the directory, or the nearest one above it that exists.
func nearestExisting(directory string) (string, error) {
	for {
		info, err := os.Stat(directory)
		switch {
		case err == nil && info.IsDir():
			return directory, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory: choose another --data-dir", directory)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) || directory == filepath.Dir(directory):
			return "", fmt.Errorf("look at the data directory: %w", err)
		}
		directory = filepath.Dir(directory)
	}
}

func checkPort(ctx context.Context, listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return invocation.Usagef("--listen %q: it must be an address and a port, like 127.0.0.1:8080", listen)
	}
	if address, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !address.IsLoopback()) {
		return invocation.Usagef("--listen %q: sandbar dev serves in the clear, so the address must be of this machine's loopback, like 127.0.0.1:8080; sandbar serve serves others, with TLS", listen)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", listen)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s is in use by another program: end that, or choose another port with --listen", listen)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be listened on: %w", listen, err)
	}
	return listener.Close()
}
