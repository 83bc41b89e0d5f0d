package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// A runtime whose engine was killed may put its child into the group after the
// engine's successor has ended all that was there.
func TestAGroupIsRemovedThoughAProcessHasJoinedLate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	groups, err := discoverCgroups()
	if err != nil {
		t.Skip(err)
	}
	group := filepath.Join(fmt.Sprintf("sandbar-test-%d-late", os.Getpid()), "sandbox")
	late := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := late.Start(); err != nil {
		t.Fatal(err)
	}
	if err := groups.kill(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	for _, h := range groups.hierarchies {
		dir := filepath.Join(h.mountpoint, group)
		t.Cleanup(func() { _ = os.Remove(filepath.Dir(dir)) })
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		// A cpuset takes no process before it has CPUs.
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(late.Process.Pid)), 0o600); err != nil {
			t.Logf("%s: %v", dir, err)
		}
	}
	if pids, err := groups.processes(group); err != nil || len(pids) != 1 {
		t.Fatalf("the group has %v, %v", pids, err)
	}
	// The process is reaped here as init would: what is no more is not listed.
	ended := make(chan error, 1)
	go func() { ended <- late.Wait() }()
	if err := groups.remove(t.Context(), group); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the process ended by itself")
	}
	for _, h := range groups.hierarchies {
		if _, err := os.Stat(filepath.Join(h.mountpoint, group)); !os.IsNotExist(err) {
			t.Errorf("%s has the group still: %v", h.mountpoint, err)
		}
	}
}
