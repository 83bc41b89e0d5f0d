package attach_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"go.uber.org/goleak"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/clitest"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves one running sandbox, "sandbox-1".
func start(t *testing.T) (*clitest.Server, *client.Client) {
	t.Helper()
	server := clitest.Start(t)
	environment := map[string]string{client.SandboxEndpointVariable: server.URL, client.SandboxTokenVariable: clitest.Token}
	c, err := client.New(client.Options{Getenv: func(name string) string { return environment[name] }}, client.Sandboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	_, err = c.Sandboxes.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{
		Spec: &sandboxv1.SandboxSpec{Containers: []*sandboxv1.Container{{Name: "main", Image: "busybox:1"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return server, c
}

func TestATerminalPassesKeysAndItsSizeAndIsPutBack(t *testing.T) {
	_, c := start(t)
	keyboard, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer screen.Close()
	if err := pty.Setsize(keyboard, &pty.Winsize{Cols: 101, Rows: 37}); err != nil {
		t.Fatal(err)
	}
	type result struct {
		code int
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := attach.Exec(t.Context(), c.Sandboxes, iostreams.Files(screen, screen, screen), attach.ExecOptions{
			SandboxID: "sandbox-1", TTY: true, Stdin: true,
			Command: []string{"sh", "-c", `stty size; echo "prompt>"; read line; echo "got $line"; exit 5`},
		})
		ended <- result{code, err}
	}()
	shown := readUntil(t, keyboard, "prompt>")
	if !strings.Contains(shown, "37 101") {
		t.Errorf("the command's terminal has another size: %q", shown)
	}
	if _, err := io.WriteString(keyboard, "hello\r"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, keyboard, "got hello")
	got := <-ended
	if got.err != nil || got.code != 5 {
		t.Errorf("Exec = %d, %v; want 5, nil", got.code, got.err)
	}
}

func readUntil(t *testing.T, from *os.File, text string) string {
	t.Helper()
	var shown bytes.Buffer
	buffer := make([]byte, 4096)
	for !strings.Contains(shown.String(), text) {
		n, err := from.Read(buffer)
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, shown.String(), err)
		}
		shown.Write(buffer[:n])
	}
	return shown.String()
}

func TestACommandThatIgnoresItsInputEndsTheCall(t *testing.T) {
	_, c := start(t)
	// Nobody ever types: only the end of the command can end this call.
	keyboard, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer screen.Close()
	var out bytes.Buffer
	streams := iostreams.Files(screen, screen, screen)
	streams.Out = &out
	code, err := attach.Exec(t.Context(), c.Sandboxes, streams, attach.ExecOptions{
		SandboxID: "sandbox-1", Stdin: true, Command: []string{"echo", "done"},
	})
	if code != 0 || err != nil || out.String() != "done\n" {
		t.Errorf("Exec = %d, %v with output %q; want 0, nil, done", code, err, out.String())
	}
}

func TestTheEndOfTheContextEndsTheCommand(t *testing.T) {
	server, c := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	server.Sandboxes.OnExec = func(*sandboxv1.ExecStreamInit) error {
		cancel()
		return nil
	}
	_, err := attach.Exec(ctx, c.Sandboxes, iostreams.Buffers(strings.NewReader(""), io.Discard, io.Discard), attach.ExecOptions{
		SandboxID: "sandbox-1", Command: []string{"sleep", "600"},
	})
	if connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("Exec = %v, want a cancelled call", err)
	}
	// The server's Cleanup waits for the command: it hangs if it was not ended.
}

func TestTheEndOfTheContextEndsACommandThatWaitsForInput(t *testing.T) {
	server, c := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	server.Sandboxes.OnExec = func(*sandboxv1.ExecStreamInit) error {
		cancel()
		return nil
	}
	// Nobody ever types.
	keyboard, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer screen.Close()
	_, err = attach.Exec(ctx, c.Sandboxes, iostreams.Files(screen, screen, screen), attach.ExecOptions{
		SandboxID: "sandbox-1", Stdin: true, Command: []string{"cat"},
	})
	if connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("Exec = %v, want a cancelled call", err)
	}
}

func TestInputThatCannotBeReadEndsTheCommand(t *testing.T) {
	_, c := start(t)
	broken := errors.New("the disk cannot be read")
	_, err := attach.Exec(t.Context(), c.Sandboxes, iostreams.Buffers(iotest.ErrReader(broken), io.Discard, io.Discard), attach.ExecOptions{
		SandboxID: "sandbox-1", Stdin: true, Command: []string{"cat"},
	})
	var interrupted *attach.InterruptedError
	if !errors.Is(err, broken) || !errors.As(err, &interrupted) {
		t.Errorf("Exec = %v, want an interruption because of the input", err)
	}
}

func TestInputLargerThanAFrameArrivesWhole(t *testing.T) {
	_, c := start(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	var out bytes.Buffer
	code, err := attach.Exec(t.Context(), c.Sandboxes, iostreams.Buffers(bytes.NewReader(sent), &out, io.Discard), attach.ExecOptions{
		SandboxID: "sandbox-1", Stdin: true, Command: []string{"cat"},
	})
	if code != 0 || err != nil || !bytes.Equal(out.Bytes(), sent) {
		t.Errorf("Exec = %d, %v; %d bytes of %d came back", code, err, out.Len(), len(sent))
	}
}

func TestFollowedLogsGoOnWhereTheyBroke(t *testing.T) {
	server, c := start(t)
	var asked []*sandboxv1.StreamLogsRequest
	server.Sandboxes.Logs = func(request *sandboxv1.StreamLogsRequest, send func(*sandboxv1.LogEntry) error) error {
		asked = append(asked, request)
		switch len(asked) {
		case 1:
			if err := send(&sandboxv1.LogEntry{Data: []byte("one\n"), LogSessionId: "s1", NextLogOffset: 4}); err != nil {
				return err
			}
			return connect.NewError(connect.CodeUnavailable, errors.New("the runner went away"))
		case 2:
			return send(&sandboxv1.LogEntry{Error: &sandboxv1.LogStreamError{Code: "SESSION_NOT_FOUND"}})
		default:
			return send(&sandboxv1.LogEntry{Data: []byte("two\n"), LogSessionId: "s2", NextLogOffset: 4})
		}
	}
	var out bytes.Buffer
	request := &sandboxv1.StreamLogsRequest{SandboxId: "sandbox-1", Follow: true, TailLines: 10}
	if err := attach.Logs(t.Context(), c.Sandboxes, request, &out, noWait); err != nil {
		t.Fatal(err)
	}
	if out.String() != "one\ntwo\n" {
		t.Errorf("the log is %q", out.String())
	}
	if len(asked) != 3 {
		t.Fatalf("%d requests, want 3", len(asked))
	}
	if resumed := asked[1]; resumed.GetResumeLogSessionId() != "s1" || resumed.GetResumeLogOffset() != 4 || resumed.GetTailLines() != 0 {
		t.Errorf("the second request does not resume: %v", resumed)
	}
	if fresh := asked[2]; fresh.GetResumeLogSessionId() != "" || fresh.GetSinceTime() == nil {
		t.Errorf("the third request does not start afresh from now: %v", fresh)
	}
}

func TestLogsThatKeepBreakingFail(t *testing.T) {
	server, c := start(t)
	calls := 0
	server.Sandboxes.Logs = func(*sandboxv1.StreamLogsRequest, func(*sandboxv1.LogEntry) error) error {
		calls++
		return connect.NewError(connect.CodeUnavailable, errors.New("down"))
	}
	err := attach.Logs(t.Context(), c.Sandboxes, &sandboxv1.StreamLogsRequest{SandboxId: "sandbox-1", Follow: true}, io.Discard, noWait)
	if connect.CodeOf(err) != connect.CodeUnavailable || calls != 6 {
		t.Errorf("Logs = %v after %d calls, want unavailable after 6", err, calls)
	}
}

func noWait(ctx context.Context, _ time.Duration) error { return ctx.Err() }
