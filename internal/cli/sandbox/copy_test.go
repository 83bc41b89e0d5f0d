package sandbox

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
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
