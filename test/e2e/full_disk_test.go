package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// smallDisk is a file system of 1 GiB of its own.
func smallDisk(t *testing.T) string {
	t.Helper()
	if missing != "" {
		t.Skip("the whole system cannot run here: " + missing)
	}
	image, directory := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<30)); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, directory}} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("a small disk cannot be made here: %v: %s", err, out)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(directory, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	return directory
}

// fillUp leaves no room for another byte, and answers with what it made.
func fillUp(t *testing.T, directory string) string {
	t.Helper()
	file, err := os.Create(filepath.Join(directory, "filling"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for chunk := bytes.Repeat([]byte{1}, 1<<20); len(chunk) > 0; {
		_, err := file.Write(chunk)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			chunk = chunk[:len(chunk)/2]
		case err != nil:
			t.Fatal(err)
		}
	}
	return file.Name()
}

const (
	diskReserve = "--disk-reserve=256Mi"
	fillsDisk   = "while true; do cat /dev/zero >> /filling; done"
)

// TestASandboxThatFillsTheDiskIsEndedAndTheOthersGoOn: it never stops writing,
// and whoever is beside it notices nothing that lasts.
func TestASandboxThatFillsTheDiskIsEndedAndTheOthersGoOn(t *testing.T) {
	s := startIn(t, smallDisk(t), diskReserve)
	other := s.create("sleep", "600")
	filler := s.create("sh", "-c", fillsDisk)
	status := s.awaitState(filler, sandboxv1.State_STATE_FAILED)
	if !strings.HasPrefix(status.GetStateReason(), "evicted: the disk of its runner was nearly full") {
		t.Errorf("the reason is %q", status.GetStateReason())
	}
	if got := s.run("", "sandbox", "exec", other, "--", "sh", "-c", "echo here > /file; cat /file"); got.stdout != "here\n" {
		t.Errorf("the other answers %+v", got)
	}
	eventually(t, "there is room for a new sandbox", func() error {
		if got := s.run("", "run", "busybox:1", "--", "echo", "new"); got.stdout != "new\n" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	s.must("sandbox", "delete", "--grace", "1s", other)
	s.interrupt()
	s.nothingLeft()
}

// TestOnAFullDiskSandboxesCanBeDeleted: others have filled it to the last byte.
// What is deleted stays deleted, over a crash of everything, and once there is
// room sandboxes are made again.
func TestOnAFullDiskSandboxesCanBeDeleted(t *testing.T) {
	disk := smallDisk(t)
	s := startIn(t, disk, diskReserve, "--keep")
	first, second := s.create("sleep", "600"), s.create("sleep", "600")
	filling := fillUp(t, disk)

	eventually(t, "a new sandbox is refused", func() error {
		got := s.run("", "sandbox", "create", "busybox:1", "--", "sleep", "600")
		if !strings.Contains(got.stderr, "CWSANDBOX_STORAGE_FULL") || !strings.Contains(got.stderr, "delete sandboxes") {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	s.must("sandbox", "delete", "--grace", "1s", first)
	s.awaitState(first, sandboxv1.State_STATE_TERMINATED)

	s.crash()
	s.killRunner()
	s.startDev(diskReserve)
	s.awaitRunner()
	s.awaitState(first, sandboxv1.State_STATE_TERMINATED)
	s.awaitState(second, sandboxv1.State_STATE_RUNNING)
	s.must("sandbox", "delete", "--grace", "1s", second)
	s.awaitState(second, sandboxv1.State_STATE_TERMINATED)

	if err := os.Remove(filling); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is room for a new sandbox", func() error {
		if got := s.run("", "run", "busybox:1", "--", "echo", "new"); got.stdout != "new\n" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	s.interrupt()
	s.nothingLeft()
}

func (s *system) awaitState(id string, state sandboxv1.State) *sandboxv1.SandboxStatus {
	s.t.Helper()
	c := s.client()
	var status *sandboxv1.SandboxStatus
	eventually(s.t, id+" is "+state.String(), func() error {
		sandbox, err := c.Sandboxes.GetSandbox(s.t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
		if err != nil {
			return err
		}
		if status = sandbox.GetStatus(); status.GetState() != state {
			return fmt.Errorf("it is %s: %s", status.GetState(), status.GetStateReason())
		}
		return nil
	})
	return status
}
