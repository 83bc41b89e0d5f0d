package oci

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// knownCapabilities are in the kernel's order: a capability's index is its
// number (capabilities(7)).
var knownCapabilities = [...]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
	"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO",
	"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
	"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
	"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// boundingCapabilities are those of this process.
func boundingCapabilities() ([]string, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	_, rest, found := strings.Cut(string(data), "CapBnd:")
	if !found {
		return nil, fmt.Errorf("read own capabilities: /proc/self/status names none")
	}
	text, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		return nil, fmt.Errorf("parse own capabilities: %w", err)
	}
	var names []string
	for number, name := range knownCapabilities {
		if mask&(1<<number) != 0 {
			names = append(names, name)
		}
	}
	return names, nil
}
