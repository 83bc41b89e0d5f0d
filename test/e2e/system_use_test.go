package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneMachineEndToEnd is a user's first hour, through every layer.
func TestOneMachineEndToEnd(t *testing.T) {
	s := start(t)

	t.Run("run passes output, input and the exit code on, and removes the sandbox", func(t *testing.T) {
		got := s.run("typed", "run", "-i", "busybox:1", "--", "sh", "-c", "cat; echo complaint >&2; exit 7")
		if got.stdout != "typed" || got.stderr != "complaint\n" || got.code != 7 {
			t.Errorf("got %+v", got)
		}
		if list := s.must("sandbox", "list"); strings.Count(list, "\n") != 1 {
			t.Errorf("sandboxes are left:\n%s", list)
		}
	})
	t.Run("a command that is not there ends with 127", func(t *testing.T) {
		if got := s.run("", "run", "busybox:1", "--", "no-such-command"); got.code != 127 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("an image that does not exist is a clear error", func(t *testing.T) {
		got := s.run("", "run", "absent:1", "--", "true")
		if got.code != 125 || !strings.Contains(got.stderr, "absent:1") {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("more than the policy allows is refused", func(t *testing.T) {
		got := s.run("", "run", "--cpu", "16", "busybox:1", "--", "true")
		if got.code != 6 || !strings.Contains(got.stderr, "cpu") {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a sandbox is used, copied to and from, and deleted", func(t *testing.T) { s.useSandbox(t) })
	t.Run("a second sandbar dev on the directory is refused", func(t *testing.T) {
		got := s.run("", "dev", "--data-dir", s.directory, "--listen", freeAddress(t), "--runtime", ociRuntime())
		if got.code == 0 || !strings.Contains(got.stderr, "another sandbar dev works on") {
			t.Errorf("got %+v", got)
		}
	})

	s.must("sandbox", "create", "busybox:1", "--", "sleep", "600")
	s.interrupt()
	s.nothingLeft()
}

func (s *system) useSandbox(t *testing.T) {
	t.Helper()
	id := s.create("sh", "-c", "echo begun; sleep 600")
	if got := s.run("", "sandbox", "logs", id); got.stdout != "begun\n" || got.code != 0 {
		t.Errorf("logs: %+v", got)
	}
	if got := s.run("", "sandbox", "exec", "-e", "NAME=value", "-w", "/tmp", id, "--", "sh", "-c", "echo $NAME; pwd"); got.stdout != "value\n/tmp\n" {
		t.Errorf("exec: %+v", got)
	}
	directory := t.TempDir()
	for name, size := range map[string]int{"small": 1 << 10, "large": 40 << 20} {
		here, back := filepath.Join(directory, name), filepath.Join(directory, name+"-back")
		if err := os.WriteFile(here, []byte(strings.Repeat("x", size-1)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.must("sandbox", "cp", here, id+":/tmp/made/"+name)
		s.must("sandbox", "cp", id+":/tmp/made/"+name, back)
		if out, err := exec.Command("cmp", here, back).CombinedOutput(); err != nil {
			t.Errorf("%s came back changed: %s", name, out)
		}
	}
	s.must("sandbox", "delete", "--grace", "1s", id)
	if got := s.run("", "sandbox", "exec", id, "--", "true"); got.code == 0 {
		t.Error("a deleted sandbox still runs commands")
	}
}

// create makes a sandbox and returns its id.
func (s *system) create(command ...string) string {
	s.t.Helper()
	out := s.must(append([]string{"sandbox", "create", "busybox:1", "--"}, command...)...)
	_, row, _ := strings.Cut(out, "\n")
	fields := strings.Fields(row)
	if len(fields) < 2 || fields[1] != "RUNNING" {
		s.t.Fatalf("created was %q", out)
	}
	return fields[0]
}

// TestKeptSandboxesAreAdopted: --keep and a crash both leave sandboxes to the
// next start.
func TestKeptSandboxesAreAdopted(t *testing.T) {
	s := start(t, "--keep")
	id := s.create("sh", "-c", "echo state > /tmp/state; sleep 600")
	for name, end := range map[string]func(){"an end in good order": s.interrupt, "a crash": s.crash} {
		end()
		s.startDev("--keep")
		s.awaitRunner()
		eventually(t, "after "+name+" the sandbox is used", func() error {
			got := s.run("", "sandbox", "exec", id, "--", "cat", "/tmp/state")
			if got.stdout != "state\n" {
				return &unexpected{got}
			}
			return nil
		})
	}
	s.interrupt()
	s.startDev()
	s.interrupt()
	s.nothingLeft()
}

type unexpected struct{ got result }

// Error is part of error.
func (u *unexpected) Error() string { return u.got.stdout + u.got.stderr }
