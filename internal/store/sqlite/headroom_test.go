package sqlite_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
)

const diskBytes = 160 << 20

// disks are small file systems of their own, which are gone after the test.
func disks() map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"tmpfs": func(t *testing.T) string {
			return mounted(t, "tmpfs", func(directory string) error {
				return unix.Mount("tmpfs", directory, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes))
			})
		},
		"ext4": func(t *testing.T) string {
			image := filepath.Join(t.TempDir(), "image")
			if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskBytes)); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
				t.Skipf("needs mkfs.ext4: %v: %s", err, out)
			}
			return mounted(t, "a loop device", func(directory string) error {
				return exec.CommandContext(t.Context(), "mount", "-o", "loop", image, directory).Run()
			})
		},
	}
}

func mounted(t *testing.T, what string, mount func(directory string) error) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	directory := t.TempDir()
	if err := mount(directory); err != nil {
		t.Skipf("needs %s: %v", what, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Error(err)
		}
	})
	return directory
}

// fill writes until there is no room for another byte.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for chunk := bytes.Repeat([]byte{1}, 1<<20); len(chunk) > 0; {
		_, err := file.Write(chunk)
		switch {
		case errors.Is(err, unix.ENOSPC):
			chunk = chunk[:len(chunk)/2]
		case err != nil:
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

func sandboxNumber(n int) *gateway.Record {
	return &gateway.Record{
		SandboxID: fmt.Sprintf("sandbox-%d", n), OrganizationID: "org-1", UserID: "user-1", RunnerID: "local",
		Spec:       &sandboxv1.SandboxSpec{Tags: []string{"disk"}},
		Status:     &sandboxv1.SandboxStatus{State: sandboxv1.State_STATE_RUNNING},
		CreateTime: time.Unix(int64(n), 0).UTC(),
	}
}

// TestOnAFullDiskSandboxesEndAndNoneIsAdded: whatever ends is stored while
// there is not a byte of room, over restarts, too.
func TestOnAFullDiskSandboxesEndAndNoneIsAdded(t *testing.T) {
	for name, disk := range disks() {
		t.Run(name, func(t *testing.T) {
			directory := disk(t)
			path := filepath.Join(directory, "sandbar.db")
			store := openToClose(t, path)
			const kept = 300
			for n := range kept {
				if _, _, err := store.InsertSandbox(t.Context(), sandboxNumber(n)); err != nil {
					t.Fatal(err)
				}
			}
			filling := filepath.Join(directory, "filling")
			fill(t, filling)
			refused := 0
			for n := kept; refused == 0; n++ {
				_, _, err := store.InsertSandbox(t.Context(), sandboxNumber(n))
				switch {
				case apierr.ReasonOf(err) == apierr.StorageFull:
					refused = n
				case err != nil:
					t.Fatalf("sandbox %d: %v", n, err)
				}
			}
			t.Logf("%d more were added before one was refused", refused-kept)
			for n := range kept {
				endSandbox(t, store, n)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			fill(t, filepath.Join(directory, "what closing has freed"))

			store = openFile(t, path)
			for n := kept; n < refused; n++ {
				endSandbox(t, store, n)
			}
			for n := range refused {
				record, err := store.Sandbox(t.Context(), "org-1", fmt.Sprintf("sandbox-%d", n))
				if err != nil || record.Status.GetState() != sandboxv1.State_STATE_TERMINATED {
					t.Fatalf("sandbox %d has become %v, %v", n, record, err)
				}
			}
			if _, err := store.DeleteSandboxesEndedBefore(t.Context(), time.Now().Add(time.Hour)); err != nil {
				t.Errorf("forget the ended ones: %v", err)
			}
			if err := os.Remove(filling); err != nil {
				t.Fatal(err)
			}
			if _, _, err := store.InsertSandbox(t.Context(), sandboxNumber(refused)); err != nil {
				t.Errorf("there is room again, and a sandbox is refused: %v", err)
			}
		})
	}
}

// openToClose leaves closing to the test, unless it fails before.
func openToClose(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func endSandbox(t *testing.T, store *sqlite.Store, n int) {
	t.Helper()
	_, err := store.ChangeSandbox(t.Context(), "org-1", fmt.Sprintf("sandbox-%d", n), func(r *gateway.Record) bool {
		r.TerminateRequested, r.EndTime = true, time.Now()
		r.Status.State, r.Status.StateReason = sandboxv1.State_STATE_TERMINATED, "deleted on request"
		return true
	})
	if err != nil {
		t.Fatalf("end sandbox %d: %v", n, err)
	}
}
