package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Where the guest finds itself and its socket.
const (
	guestDir    = "/.sandbar"
	guestBinary = guestDir + "/guest"
	guestSocket = guestDir + "/guest.sock"
)

const (
	// defaultPidsLimit applies when a sandbox names no limit.
	defaultPidsLimit = 4096
	// shmBytes is the size of /dev/shm.
	shmBytes = 64 << 20
	// What gVisor's own kernel takes out of a sandbox's limits, so that a
	// sandbox gets what it was promised.
	userspaceKernelPids   = 512
	userspaceKernelMemory = 64 << 20
)

// defaultCapabilities are Docker's without NET_RAW: nothing needs to make up
// packets, and ping works without it.
func defaultCapabilities() []string {
	return []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// specBuilder turns sandboxes into OCI runtime configurations.
type specBuilder struct {
	guestPath    string
	cgroupParent string
	cgroups      cgroups
	runtime      runtimeKind
	// bounding is what this process may give away.
	bounding []string
}

// write puts config.json into the bundle. hasNetwork says that a namespace is
// mounted in the sandbox's directory.
func (b *specBuilder) write(dir directory, spec engine.Spec, hasNetwork bool) error {
	built, err := b.build(dir, spec, hasNetwork)
	if err != nil {
		return err
	}
	data, err := json.Marshal(built)
	if err != nil {
		return fmt.Errorf("encode runtime configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir.bundle(), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write runtime configuration: %w", err)
	}
	return nil
}

func (b *specBuilder) build(dir directory, spec engine.Spec, hasNetwork bool) (*specs.Spec, error) {
	capabilities, err := b.capabilities(spec.Security)
	if err != nil {
		return nil, err
	}
	built := &specs.Spec{
		Version:  "1.0.2",
		Hostname: spec.Hostname,
		Root:     &specs.Root{Path: "rootfs", Readonly: spec.Security.ReadOnlyRootFilesystem},
		Process: &specs.Process{
			Args: []string{guestBinary, "--socket", guestSocket},
			Cwd:  "/",
			Env:  []string{"PATH=" + systemPath},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			NoNewPrivileges: true,
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}},
		},
		Mounts: b.mounts(dir),
		Linux: &specs.Linux{
			CgroupsPath: "/" + b.cgroupParent + "/" + spec.ID,
			Namespaces:  namespaces(dir, hasNetwork),
			Resources:   b.resources(spec.Resources),
		},
	}
	if b.runtime.userspaceKernel {
		return built, nil
	}
	built.Linux.MaskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
	built.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	built.Linux.Sysctl = map[string]string{"net.ipv4.ping_group_range": "0 2147483647"}
	if !spec.Security.SeccompUnconfined {
		built.Linux.Seccomp, err = seccomp.GetDefaultProfile(built)
		if err != nil {
			return nil, fmt.Errorf("seccomp filter: %w", err)
		}
		built.Linux.Seccomp.Architectures = nativeOnly(built.Linux.Seccomp.Architectures)
	}
	return built, nil
}

// nativeOnly leaves of a filter's architectures the machine's own, which comes
// first. The runtime compiles the filter at every start, once for each of them,
// and a program for another (32 bits on a 64-bit machine) would not run in
// gVisor either. The kernel ends one at its first system call.
func nativeOnly(architectures []specs.Arch) []specs.Arch {
	return architectures[:min(1, len(architectures))]
}

func namespaces(dir directory, hasNetwork bool) []specs.LinuxNamespace {
	network := specs.LinuxNamespace{Type: specs.NetworkNamespace}
	if hasNetwork {
		network.Path = dir.netns()
	}
	return []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.CgroupNamespace},
		network,
	}
}

func (b *specBuilder) mounts(dir directory) []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + strconv.Itoa(shmBytes)}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
	if b.runtime.userspaceKernel {
		// gVisor has all of these by itself but the size of /dev/shm.
		mounts = slices.DeleteFunc(mounts, func(m specs.Mount) bool { return m.Destination != "/proc" && m.Destination != "/dev/shm" })
	}
	return append(mounts,
		specs.Mount{Destination: guestDir, Type: "bind", Source: dir.export(), Options: []string{"bind", "rprivate", "nosuid", "nodev", "noexec"}},
		specs.Mount{Destination: guestBinary, Type: "bind", Source: b.guestPath, Options: []string{"bind", "rprivate", "nosuid", "nodev", "ro"}},
	)
}

// resources leaves out the cap on CPU time, which would slow the start down; see
// cgroups.capCPU.
func (b *specBuilder) resources(r engine.Resources) *specs.LinuxResources {
	const (
		minShares   = 2    // the kernel's
		fullShares  = 1024 // of one CPU
		millisOfCPU = 1000
	)
	resources := &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		CPU:     &specs.LinuxCPU{},
	}
	if r.CPURequestMillis > 0 {
		shares := uint64(max(r.CPURequestMillis*fullShares/millisOfCPU, minShares))
		resources.CPU.Shares = &shares
	}
	memory, pids := r.MemoryLimitBytes, r.PidsLimit
	if pids == 0 {
		pids = defaultPidsLimit
	}
	if b.runtime.userspaceKernel {
		pids += userspaceKernelPids
		if memory > 0 {
			memory += userspaceKernelMemory
		}
	}
	resources.Pids = &specs.LinuxPids{Limit: &pids}
	if memory > 0 {
		resources.Memory = &specs.LinuxMemory{Limit: &memory}
		// A limit on memory and swap together that equals the one on memory
		// leaves no swap.
		if b.cgroups.swap || b.cgroups.unifiedOnly() {
			resources.Memory.Swap = &memory
		}
	}
	return resources
}

// capabilities are the default, less what is dropped, and what is added, as far
// as this process has them to give.
func (b *specBuilder) capabilities(security engine.Security) ([]string, error) {
	drop, dropAll, err := capabilityNames(security.CapabilitiesDrop)
	if err != nil {
		return nil, fmt.Errorf("capabilities to drop: %w", err)
	}
	add, addAll, err := capabilityNames(security.CapabilitiesAdd)
	if err != nil {
		return nil, fmt.Errorf("capabilities to add: %w", err)
	}
	var set []string
	switch {
	case addAll:
		set = slices.Clone(b.bounding)
	case !dropAll:
		set = defaultCapabilities()
	}
	set = slices.DeleteFunc(set, func(name string) bool { return slices.Contains(drop, name) })
	set = append(set, add...)
	slices.Sort(set)
	set = slices.Compact(set)
	for _, name := range set {
		if !slices.Contains(b.bounding, name) && slices.Contains(add, name) {
			return nil, fmt.Errorf("capability %s: the runner does not have it itself", name)
		}
	}
	return slices.DeleteFunc(set, func(name string) bool { return !slices.Contains(b.bounding, name) }), nil
}

// capabilityNames spells names as the runtime specification does; "ALL" stands
// for every capability.
func capabilityNames(names []string) (canonical []string, all bool, err error) {
	for _, name := range names {
		name = strings.ToUpper(name)
		if name == "ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(name, "CAP_") {
			name = "CAP_" + name
		}
		if !slices.Contains(knownCapabilities[:], name) {
			return nil, false, fmt.Errorf("%s is not a capability of Linux", name)
		}
		canonical = append(canonical, name)
	}
	return canonical, all, nil
}
