package sandbox

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/clitest"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves one sandbox, "sandbox-1", whose commands run on this machine.
func start(t *testing.T) (*clitest.Server, *invocation.Invocation) {
	t.Helper()
	server := clitest.Start(t)
	environment := map[string]string{client.SandboxEndpointVariable: server.URL, client.SandboxTokenVariable: clitest.Token}
	_, err := server.Sandboxes.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{
		Spec: &sandboxv1.SandboxSpec{Containers: []*sandboxv1.Container{{Name: "main", Image: "busybox:1"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return server, &invocation.Invocation{
		IO:     iostreams.Buffers(strings.NewReader(""), io.Discard, io.Discard),
		Now:    time.Now,
		Getenv: func(name string) string { return environment[name] },
	}
}

func TestFilesThatAreTooLargeForOneCallGoThroughACommand(t *testing.T) {
	server, call := start(t)
	directory := t.TempDir()
	large := bytes.Repeat([]byte("0123456789abcde\n"), 2*clitest.MaxFileBytes/16)
	here, inside, back := filepath.Join(directory, "here"), filepath.Join(directory, "made", "inside"), filepath.Join(directory, "back")
	if err := os.WriteFile(here, large, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runCopy(t.Context(), call, here, "sandbox-1:"+inside); err != nil {
		t.Fatalf("copy in: %v", err)
	}
	if got, err := os.ReadFile(inside); err != nil || !bytes.Equal(got, large) {
		t.Fatalf("in the sandbox are %d bytes of %d, %v", len(got), len(large), err)
	}
	server.Sandboxes.Put(inside, large)
	if err := runCopy(t.Context(), call, "sandbox-1:"+inside, back); err != nil {
		t.Fatalf("copy out: %v", err)
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, large) {
		t.Fatalf("back came %d bytes of %d, %v", len(got), len(large), err)
	}
}

func TestACopyThatFailsLeavesNothingHere(t *testing.T) {
	_, call := start(t)
	directory := t.TempDir()
	if err := runCopy(t.Context(), call, "sandbox-1:/absent", filepath.Join(directory, "copy")); err == nil {
		t.Fatal("the copy of an absent file succeeded")
	}
	left, err := os.ReadDir(directory)
	if err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// names lists a directory.
func names(t *testing.T, directory string) []string {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

func TestACopyHereIsMadeBesideTheFileThatItReplaces(t *testing.T) {
	directory := t.TempDir()
	target := filepath.Join(directory, "copy")
	if err := os.WriteFile(target, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the connection broke")
	for _, failure := range []error{broken, nil} {
		err := copier{}.replace(target, func(out io.Writer) error {
			found := names(t, directory)
			if len(found) != 2 || found[1] != "copy" || !strings.HasPrefix(found[0], ".copy.") || !strings.HasSuffix(found[0], ".part") {
				t.Errorf("while it is written there are %q, want .copy.*.part beside copy", found)
			}
			if now, err := os.ReadFile(target); err != nil || string(now) != "before" {
				t.Errorf("while the copy is written the file holds %q, %v", now, err)
			}
			_, err := io.WriteString(out, "after")
			return errors.Join(err, failure)
		})
		if !errors.Is(err, failure) {
			t.Errorf("replace = %v, want %v", err, failure)
		}
		if found := names(t, directory); len(found) != 1 {
			t.Errorf("left are %q", found)
		}
	}
	content, err := os.ReadFile(target)
	if err != nil || string(content) != "after" {
		t.Errorf("the file holds %q, %v", content, err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is now %v, %v; want the old one", info.Mode(), err)
	}
}

func TestACopyFollowsALinkAndWritesToAPipe(t *testing.T) {
	server, call := start(t)
	server.Sandboxes.Put("/result", []byte("content"))
	directory := t.TempDir()
	link, file, pipe := filepath.Join(directory, "link"), filepath.Join(directory, "file"), filepath.Join(directory, "pipe")
	if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Symlink("file", link), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := runCopy(t.Context(), call, "sandbox-1:/result", link); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(link); err != nil || target != "file" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "content" {
		t.Errorf("the file behind the link holds %q, %v", content, err)
	}
	read := make(chan string, 1)
	go func() {
		content, _ := os.ReadFile(pipe)
		read <- string(content)
	}()
	if err := runCopy(t.Context(), call, "sandbox-1:/result", pipe); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "content" {
		t.Errorf("through the pipe came %q", got)
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is now %v, %v", info.Mode(), err)
	}
}

// breaking gives some input, and fails once the copy has begun to be written.
type breaking struct {
	t         *testing.T
	directory string
	given     bool
}

func (b *breaking) Read(buffer []byte) (int, error) {
	if !b.given {
		b.given = true
		return copy(buffer, "the first part"), nil
	}
	for len(names(b.t, b.directory)) == 0 {
		if err := attach.Sleep(b.t.Context(), time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("the disk cannot be read")
}

func TestALargeCopyThatBreaksOffLeavesNothingInTheSandbox(t *testing.T) {
	_, call := start(t)
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	directory := t.TempDir()
	destination := place{Sandbox: "sandbox-1", Path: filepath.Join(directory, "inside")}
	err = copier{call: call, sandboxes: server.Sandboxes}.
		uploadByCommand(t.Context(), &breaking{t: t, directory: directory}, destination)
	if err == nil || !strings.Contains(err.Error(), "the disk cannot be read") {
		t.Errorf("the copy ends with %v", err)
	}
	if left := names(t, directory); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

func TestALargeCopyDoesNotTakeTheNameOfADirectory(t *testing.T) {
	_, call := start(t)
	directory := t.TempDir()
	here := filepath.Join(t.TempDir(), "here")
	if err := os.WriteFile(here, make([]byte, 2*clitest.MaxFileBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runCopy(t.Context(), call, here, "sandbox-1:"+directory); err == nil || !strings.Contains(err.Error(), "end it with / to copy into it") {
		t.Errorf("the copy onto a directory ends with %v", err)
	}
	if left := names(t, directory); len(left) > 0 {
		t.Errorf("in the directory are %q", left)
	}
	if err := runCopy(t.Context(), call, here, "sandbox-1:"+directory+"/"); err != nil {
		t.Fatal(err)
	}
	if found := names(t, directory); len(found) != 1 || found[0] != "here" {
		t.Errorf("in the directory are %q, want here", found)
	}
}

func TestTheTableSaysHowAMainProcessEnded(t *testing.T) {
	for want, status := range map[string]*sandboxv1.SandboxStatus{
		"-":                  {State: sandboxv1.State_STATE_RUNNING},
		"exited with code 3": {State: sandboxv1.State_STATE_COMPLETED, ExitCode: proto.Int32(3)},
		"exited with code 0": {State: sandboxv1.State_STATE_COMPLETED, ExitCode: proto.Int32(0)},
		"OOM killed":         {State: sandboxv1.State_STATE_FAILED, ExitCode: proto.Int32(137), StateReason: "OOM killed"},
	} {
		shown := table([]*sandboxv1.Sandbox{{Status: status}}, time.Now()).Rows[0]
		if got := shown[len(shown)-1]; got != want {
			t.Errorf("%v is shown as %q, want %q", status, got, want)
		}
	}
}

func TestAFileThatIsHereCanHaveAColon(t *testing.T) {
	for text, want := range map[string]place{
		"id:/path":        {Sandbox: "id", Path: "/path"},
		"id:/path:colon":  {Sandbox: "id", Path: "/path:colon"},
		"./with:colon":    {Path: "./with:colon"},
		"/abs/with:colon": {Path: "/abs/with:colon"},
		":odd":            {Path: ":odd"},
		"-":               {Path: "-"},
	} {
		if got := parsePlace(text); got != want {
			t.Errorf("parsePlace(%q) = %+v, want %+v", text, got, want)
		}
	}
}
