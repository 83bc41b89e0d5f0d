package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

func (s *sandbox) write(path string, mode uint32, content string) error {
	return s.client.WriteFile(s.t.Context(), path, mode, strings.NewReader(content))
}

func (s *sandbox) read(path string, limit int64) (string, error) {
	file, err := s.client.ReadFile(s.t.Context(), path, limit)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	return string(content), err
}

func TestFilesComeBackAsTheyWereWritten(t *testing.T) {
	s := newSandbox(t)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	large := make([]byte, 8<<20)
	_, _ = rand.Read(large)
	for name, content := range map[string][]byte{
		"empty":         {},
		"every byte":    every,
		"one chunk":     make([]byte, guest.MaxChunkBytes),
		"chunk and one": make([]byte, guest.MaxChunkBytes+1),
		"large":         large,
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.write("/tmp/deep/er/file", 0, string(content)); err != nil {
				t.Fatal(err)
			}
			got, err := s.read("/tmp/deep/er/file", 0)
			if err != nil || !bytes.Equal([]byte(got), content) {
				t.Errorf("%d of %d bytes came back: %v", len(got), len(content), err)
			}
		})
	}
}

func TestAReplacedFileKeepsWhoseItIs(t *testing.T) {
	s := newSandbox(t).startIdle()
	for name, test := range map[string]struct {
		path string
		mode uint32
		want string
	}{
		"without a mode":     {"/tmp/f", 0, "640 1000 1001 regular file"},
		"with a mode":        {"/tmp/f", 0o755, "755 1000 1001 regular file"},
		"through a link":     {"/tmp/link", 0o600, "600 1000 1001 regular file"},
		"a new one":          {"/tmp/new", 0, "644 0 0 regular file"},
		"a new one's mode":   {"/tmp/new2", 0o777, "777 0 0 regular file"},
		"a new one's parent": {"/tmp/dir/new3", 0o4755, "4755 0 0 regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			s.sh("busybox rm -f /tmp/f /tmp/link; echo old > /tmp/f; busybox chmod 640 /tmp/f; busybox chown 1000:1001 /tmp/f; busybox ln -s f /tmp/link")
			if err := s.write(test.path, test.mode, "new\n"); err != nil {
				t.Fatal(err)
			}
			target := strings.Replace(test.path, "/tmp/link", "/tmp/f", 1)
			if got := s.sh("stat -c '%a %u %g %F' " + target + "; cat " + target); got != test.want+"\nnew" {
				t.Errorf("got %q, expected %q", got, test.want)
			}
			if got := s.sh("readlink /tmp/link"); got != "f" {
				t.Errorf("the link is %q now", got)
			}
		})
	}
	if left := s.sh("ls -A /tmp | busybox grep sandbar; true"); left != "" {
		t.Errorf("left over: %s", left)
	}
}

func TestLinksToNothingAreFollowed(t *testing.T) {
	s := newSandbox(t).startIdle()
	s.sh("busybox mkdir -p /tmp/d/e; busybox ln -s d/e /tmp/dir; busybox ln -s ../made /tmp/dir/link; busybox ln -s loop /tmp/loop")
	if err := s.write("/tmp/dir/link", 0, "x"); err != nil {
		t.Fatal(err)
	}
	// The link lies in /tmp/d/e, so its ".." is /tmp/d.
	if got := s.sh("cat /tmp/d/made"); got != "x" {
		t.Errorf("got %q", got)
	}
	requireCode(t, s.write("/tmp/loop", 0, "x"), guestv1.Error_INVALID)
}

func TestAFileThatIsAMountIsRewritten(t *testing.T) {
	s := newSandbox(t)
	if err := s.write("/etc/hosts", 0, "127.0.0.2 other\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.read("/etc/hosts", 0); err != nil || got != "127.0.0.2 other\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFilesThatCannotBeReadSayWhy(t *testing.T) {
	s := newSandbox(t).startIdle()
	s.sh("mkfifo /tmp/fifo")
	for name, test := range map[string]struct {
		path  string
		limit int64
		code  guestv1.Error_Code
	}{
		"missing":           {"/nothing", 0, guestv1.Error_NOT_FOUND},
		"below a file":      {"/etc/passwd/x", 0, guestv1.Error_NOT_FOUND},
		"directory":         {"/etc", 0, guestv1.Error_IS_DIRECTORY},
		"device":            {"/dev/null", 0, guestv1.Error_INVALID},
		"pipe":              {"/tmp/fifo", 0, guestv1.Error_INVALID},
		"relative":          {"etc/passwd", 0, guestv1.Error_INVALID},
		"empty":             {"", 0, guestv1.Error_INVALID},
		"NUL":               {"/a\x00b", 0, guestv1.Error_INVALID},
		"negative limit":    {"/etc/hosts", -1, guestv1.Error_INVALID},
		"larger than limit": {"/etc/hosts", 19, guestv1.Error_TOO_LARGE},
		"grown over limit":  {"/proc/self/status", 10, guestv1.Error_TOO_LARGE},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.read(test.path, test.limit)
			requireCode(t, err, test.code)
		})
	}
	if _, err := s.read("/etc/hosts", 20); err != nil {
		t.Errorf("exactly as large as the limit: %v", err)
	}
	_, err := s.read("/etc/hosts", 19)
	var refused *guest.Error
	if errors.As(err, &refused); refused.SizeBytes != 20 {
		t.Errorf("TOO_LARGE says %d bytes, expected 20", refused.SizeBytes)
	}
	if got, err := s.read("/proc/self/stat", 0); err != nil || !strings.HasPrefix(got, "1 (") {
		t.Errorf("a file of unknown size: %q, %v", got, err)
	}
}

func TestFilesThatCannotBeWrittenSayWhyAndChangeNothing(t *testing.T) {
	s := newSandbox(t).startIdle()
	s.sh("mkfifo /tmp/fifo; echo old > /small/f")
	large := strings.Repeat("x", 1<<20)
	for name, test := range map[string]struct {
		path, content string
		mode          uint32
		code          guestv1.Error_Code
	}{
		"directory":      {"/etc", "x", 0, guestv1.Error_IS_DIRECTORY},
		"trailing slash": {"/tmp/x/", "x", 0, guestv1.Error_IS_DIRECTORY},
		"below a file":   {"/etc/passwd/x", "x", 0, guestv1.Error_NOT_FOUND},
		"read-only":      {"/readonly/x", large, 0, guestv1.Error_PERMISSION_DENIED},
		"disk full":      {"/small/f", large, 0, guestv1.Error_NO_SPACE},
		"disk full, new": {"/small/g", large, 0, guestv1.Error_NO_SPACE},
		"device":         {"/dev/null", "x", 0, guestv1.Error_INVALID},
		"pipe":           {"/tmp/fifo", "x", 0, guestv1.Error_INVALID},
		"relative":       {"tmp/x", "x", 0, guestv1.Error_INVALID},
		"mode":           {"/tmp/x", "x", 0o10000, guestv1.Error_INVALID},
		"name too long":  {"/tmp/" + strings.Repeat("x", 300), "x", 0, guestv1.Error_INVALID},
	} {
		t.Run(name, func(t *testing.T) {
			requireCode(t, s.write(test.path, test.mode, test.content), test.code)
		})
	}
	if got := s.sh("cat /small/f; ls -A /small"); got != "old\nf" {
		t.Errorf("after the failures: %q", got)
	}
}

func TestAWriteThatIsCutOffLeavesTheOldFile(t *testing.T) {
	s := newSandbox(t)
	if err := s.write("/tmp/f", 0, "old"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	source, sink := io.Pipe()
	written := make(chan error, 1)
	go func() { written <- s.client.WriteFile(ctx, "/tmp/f", 0, source) }()
	if _, err := sink.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = sink.CloseWithError(context.Canceled)
	if err := <-written; !errors.Is(err, context.Canceled) {
		t.Errorf("WriteFile: %v", err)
	}
	s.eventually("nothing is left of it", func() bool {
		left, err := filepath.Glob(filepath.Join(s.root, "tmp", ".sandbar-*"))
		return err == nil && len(left) == 0
	})
	if got, err := os.ReadFile(filepath.Join(s.root, "tmp/f")); err != nil || string(got) != "old" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

func TestAReaderThatGoesAwayEndsTheCall(t *testing.T) {
	s := newSandbox(t)
	if err := s.write("/tmp/f", 0, strings.Repeat("x", 4<<20)); err != nil {
		t.Fatal(err)
	}
	file, err := s.client.ReadFile(t.Context(), "/tmp/f", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(file, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	// goleak, in the guest, finds a call that went on.
	if err := s.client.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
