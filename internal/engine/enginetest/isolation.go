package enginetest

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// denied are the ways in which a kernel says no.
func denied() []string {
	return []string{"permission denied", "operation not permitted", "read-only file system", "no such file or directory", "not supported", "no such device", "input/output error"}
}

func testIsolation(t *testing.T, s *suite) {
	t.Run("privileges", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		status := statusFields(box.want(t, "read", "/proc/self/status"))
		// Docker's default without NET_RAW (capability 13).
		const defaultSet = "00000000a80405fb"
		for _, field := range []string{"CapBnd", "CapPrm", "CapEff"} {
			wantEqual(t, field, status[field], defaultSet)
		}
		for _, field := range []string{"CapInh", "CapAmb"} {
			if got, ok := status[field]; ok {
				wantEqual(t, field, got, "0000000000000000")
			}
		}
		if !s.UserspaceKernel {
			wantEqual(t, "NoNewPrivs", status["NoNewPrivs"], "1")
			wantEqual(t, "Seccomp", status["Seccomp"], "2")
		}
	})
	t.Run("capabilities as asked", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.Security.CapabilitiesDrop = []string{"all"}
		spec.Security.CapabilitiesAdd = []string{"CAP_CHOWN"}
		spec.Security.SeccompUnconfined = true
		box := s.create(t, spec)
		status := statusFields(box.want(t, "read", "/proc/self/status"))
		wantEqual(t, "CapEff", status["CapEff"], "0000000000000001")
		if !s.UserspaceKernel {
			wantEqual(t, "Seccomp", status["Seccomp"], "0")
		}
	})
	t.Run("the host cannot be changed", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		for _, probe := range [][]string{
			{"write", "/proc/sys/kernel/core_pattern"},
			{"write", "/proc/sysrq-trigger"},
			{"write", "/sys/kernel/mm/ksm/run"},
			{"write", "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
			{"mount", "/mnt"},
			{"mount", "/etc"},
			{"read", "/dev/mem"},
			{"read", "/dev/kmsg"},
			{"device", "8"},
			{"device", "254"},
		} {
			box.refuse(t, denied(), probe...)
		}
		own, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		if box.want(t, "whoami") == own {
			t.Error("the sandbox has the host's name")
		}
	})
	t.Run("no device of the host's", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		usual := map[string]bool{}
		for _, name := range strings.Fields("char console core fd full fuse mqueue net null ptmx pts random shm stderr stdin stdout tty urandom zero") {
			usual[name] = true
		}
		for _, name := range strings.Fields(box.want(t, "list", "/dev")) {
			if !usual[name] {
				t.Errorf("/dev/%s", name)
			}
		}
	})
	t.Run("processes of others are not seen", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		for _, name := range strings.Fields(box.want(t, "list", "/proc")) {
			if len(name) > 3 && strings.Trim(name, "0123456789") == "" {
				t.Errorf("process %s", name)
			}
		}
	})
	t.Run("a read-only root file system", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.Security.ReadOnlyRootFilesystem = true
		box := s.create(t, spec)
		box.refuse(t, []string{"read-only file system"}, "write", "/file")
		box.refuse(t, []string{"read-only file system"}, "write", "/etc/hosts")
		box.want(t, "write", "/dev/shm/file")
	})
	t.Run("its own names", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		wantEqual(t, "/etc/hostname", box.want(t, "read", "/etc/hostname"), "box")
		if hosts := box.want(t, "read", "/etc/hosts"); !strings.Contains(hosts, "\tbox") || !strings.Contains(hosts, "127.0.0.1\tlocalhost") {
			t.Errorf("/etc/hosts:\n%s", hosts)
		}
		if resolvers := box.want(t, "read", "/etc/resolv.conf"); strings.Contains(resolvers, "nameserver") {
			t.Errorf("/etc/resolv.conf without DNS:\n%s", resolvers)
		}
	})
}

func statusFields(text string) map[string]string {
	fields := make(map[string]string)
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

func testControlChannel(t *testing.T, s *suite) {
	s.leavesNothing(t)
	box := s.create(t, s.spec())
	t.Run("the workload sees the guest's binary only", func(t *testing.T) {
		if diff := cmp.Diff([]string{"guest"}, strings.Fields(box.want(t, "list", "/.sandbar"))); diff != "" {
			t.Errorf("/.sandbar (-want +got):\n%s", diff)
		}
	})
	t.Run("it can neither connect nor take the place", func(t *testing.T) {
		box.refuse(t, denied(), "dial", "/.sandbar/guest.sock")
		box.refuse(t, denied(), "socket", "/.sandbar/guest.sock")
		box.refuse(t, denied(), "write", "/.sandbar/file")
		box.refuse(t, append(denied(), "text file busy"), "write", "/.sandbar/guest")
		box.refuse(t, denied(), "mount", "/.sandbar")
	})
	t.Run("not even with the right to read everything", func(t *testing.T) {
		spec := s.spec()
		spec.Security.CapabilitiesAdd = []string{"DAC_READ_SEARCH"}
		strong := s.create(t, spec)
		strong.refuse(t, denied(), "socket", "/.sandbar/guest.sock")
		strong.refuse(t, denied(), "dial", "/.sandbar/guest.sock")
	})
	t.Run("the host still connects", func(t *testing.T) { box.want(t, "true") })
	t.Run("a socket of the workload's own works", func(t *testing.T) { box.want(t, "socket", "/own.sock") })
}
