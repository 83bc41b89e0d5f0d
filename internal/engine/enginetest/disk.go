package enginetest

import (
	"errors"
	"testing"
	"time"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// mebibyte is more than what a file system adds to a few files.
const mebibyte = 1 << 20

func testDisk(t *testing.T, s *suite) {
	t.Run("the disk has a size", func(t *testing.T) {
		disk, err := s.Engine.Disk(t.Context())
		if err != nil || disk.FreeBytes <= 0 || disk.FreeBytes > disk.TotalBytes || disk.FreeFiles > disk.TotalFiles {
			t.Errorf("Disk() = %+v, %v", disk, err)
		}
	})
	t.Run("what a sandbox has written counts, and what it has removed does not", func(t *testing.T) {
		s.leavesNothing(t)
		box, other := s.create(t, s.spec()), s.create(t, s.spec())
		box.want(t, "fill", "/one", "8")
		wantUsage(t, s, box.id, 8*mebibyte)
		box.want(t, "fill", "/two", "4")
		wantUsage(t, s, box.id, 12*mebibyte)
		box.want(t, "fill", "/one", "1")
		wantUsage(t, s, box.id, 5*mebibyte)
		wantUsage(t, s, other.id, 0)
	})
	t.Run("a file without a name counts as long as it is open", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		kept := make(chan result, 1)
		go func() { kept <- box.run(t, "keep", "/hidden", "8") }()
		for !box.run(t, "read", "/kept").ok() {
			time.Sleep(10 * time.Millisecond)
		}
		wantUsage(t, s, box.id, 8*mebibyte)
		box.want(t, "write", "/release")
		if r := <-kept; !r.ok() {
			t.Errorf("keeping the file failed: %+v", r)
		}
		wantUsage(t, s, box.id, 0)
	})
	t.Run("no depth hides a file", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		const depth = 200 // more than a path can say
		box.want(t, "nest", "200")
		usage := wantUsage(t, s, box.id, mebibyte)
		if usage.Files < depth {
			t.Errorf("DiskUsage() = %+v; want at least %d files", usage, depth)
		}
	})
	t.Run("a sandbox that is not there", func(t *testing.T) {
		if _, err := s.Engine.DiskUsage(t.Context(), s.nextID()); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("DiskUsage() = %v; want ErrNotFound", err)
		}
	})
}

// wantUsage allows for what the file system adds.
func wantUsage(t *testing.T, s *suite, id string, bytes int64) engine.DiskUsage {
	t.Helper()
	usage, err := s.Engine.DiskUsage(t.Context(), id)
	if err != nil || usage.Bytes < bytes || usage.Bytes >= bytes+mebibyte {
		t.Errorf("DiskUsage() = %+v, %v; want %d bytes, and less than one MiB more", usage, err, bytes)
	}
	return usage
}
