package policy

import "strings"

// allCapabilities stands for every capability, where capabilities are listed.
const allCapabilities = "ALL"

// canonicalCapability is the name of a Linux capability in upper case and
// without its CAP_ prefix, or ALL.
func canonicalCapability(name string) (string, bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	switch name {
	case allCapabilities,
		"AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
		"DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
		"LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST",
		"NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT",
		"SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME",
		"SYS_TTY_CONFIG", "WAKE_ALARM":
		return name, true
	}
	return "", false
}
