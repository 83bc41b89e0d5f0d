package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

type execCall = connect.BidiStreamForClientSimple[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]

// exec starts a command.
func (b *bench) exec(ctx context.Context, client runnerv1connect.RunnerServiceClient, init *sandboxv1.ExecStreamInit) *execCall {
	b.t.Helper()
	stream, err := client.StreamExec(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Init{Init: init}}); err != nil {
		b.t.Fatal(err)
	}
	return stream
}

func (b *bench) sendStdin(stream *execCall, data string) {
	b.t.Helper()
	if err := stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: []byte(data)}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) closeStdin(stream *execCall) {
	b.t.Helper()
	message := &sandboxv1.ExecStreamRequest_Close{Close: &sandboxv1.ExecStreamClose{}}
	if err := stream.Send(&sandboxv1.ExecStreamRequest{Message: message}); err != nil {
		b.t.Fatal(err)
	}
}

// result is all that an exec answered.
type result struct {
	Stdout, Stderr string
	Code           int32
}

// finish reads an exec to its end and checks the order of its frames.
func (b *bench) finish(stream *execCall) result {
	b.t.Helper()
	defer func() { _ = stream.CloseResponse() }()
	first, err := stream.Receive()
	if err != nil || first.GetReady() == nil {
		b.t.Fatalf("the first frame is %v, %v; want ready", first, err)
	}
	var got result
	for {
		frame, err := stream.Receive()
		if err != nil {
			b.t.Fatal(err)
		}
		switch {
		case frame.GetOutput() != nil && frame.GetOutput().GetStream() == sandboxv1.ExecStreamOutput_STREAM_STDERR:
			got.Stderr += string(frame.GetOutput().GetData())
		case frame.GetOutput() != nil:
			got.Stdout += string(frame.GetOutput().GetData())
		case frame.GetExit() != nil:
			got.Code = frame.GetExit().GetExitCode()
			if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
				b.t.Fatalf("after the exit: %v, want the end", err)
			}
			return got
		default:
			b.t.Fatalf("frame %v", frame)
		}
	}
}

// run runs a command without stdin, as the SDKs do: the caller half-closes at
// once.
func (b *bench) run(client runnerv1connect.RunnerServiceClient, id string, command ...string) result {
	b.t.Helper()
	stream := b.exec(b.ctx(), client, &sandboxv1.ExecStreamInit{SandboxId: id, Command: command})
	if err := stream.CloseRequest(); err != nil {
		b.t.Fatal(err)
	}
	return b.finish(stream)
}

func TestExec(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	spec := shell("sleep 1000")
	spec.Containers[0].EnvironmentVariables = map[string]string{"FROM": "container"}
	id := b.mustRun(client, 1, spec)
	for name, tc := range map[string]struct {
		command []string
		want    result
	}{
		"half-close is not a cancel":                   {[]string{"/bin/sh", "-c", "sleep 0.2; echo late"}, result{Stdout: "late\n"}},
		"both streams and the code":                    {[]string{"/bin/sh", "-c", "echo out; echo err >&2; exit 5"}, result{"out\n", "err\n", 5}},
		"stdin is at its end":                          {[]string{"cat"}, result{}},
		"a signal's code is 128 and more":              {[]string{"/bin/sh", "-c", "kill -TERM $$"}, result{Code: 143}},
		"the container's environment over the image's": {[]string{"/bin/sh", "-c", "echo $FROM $KEPT"}, result{Stdout: "container image\n"}},
		"the image's working directory":                {[]string{"pwd"}, result{Stdout: "/tmp\n"}},
		"much output comes whole":                      {[]string{"/bin/sh", "-c", "head -c 3000000 /dev/zero | wc -c"}, result{Stdout: "3000000\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, b.run(client, id, tc.command...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExecOfAMissingProgramIsAnExit(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	got := b.run(client, id, "no-such-program")
	if got.Code != 127 || !strings.Contains(got.Stderr, "no-such-program") {
		t.Errorf("got %+v", got)
	}
}

func TestExecPassesStdinUntilClose(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	stream := b.exec(b.ctx(), client, &sandboxv1.ExecStreamInit{SandboxId: id, Command: []string{"sort"}})
	b.sendStdin(stream, "b\n")
	b.sendStdin(stream, "a\n")
	b.closeStdin(stream)
	if got := b.finish(stream); got.Stdout != "a\nb\n" || got.Code != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestExecOnATerminal(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	stream := b.exec(b.ctx(), client, &sandboxv1.ExecStreamInit{
		SandboxId: id, Command: []string{"/bin/sh"}, Tty: true, TtyWidth: 80, TtyHeight: 24,
	})
	b.sendStdin(stream, "echo $((40+2)) $TERM; stty size\n")
	b.closeStdin(stream)
	if got := b.finish(stream); !strings.Contains(got.Stdout, "42 xterm") || !strings.Contains(got.Stdout, "24 80") {
		t.Errorf("got %+v", got)
	}
}

func TestCancelledExecKillsItsProcessesAndNothingElse(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	pipe := filepath.Join(b.dir, "alive")
	ctx, cancel := context.WithCancel(b.ctx())
	stream := b.exec(ctx, client, &sandboxv1.ExecStreamInit{SandboxId: id, Command: []string{"/bin/sh", "-c", "sleep 1000 & echo $! > " + pipe + "; echo up; wait"}})
	for {
		frame, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if frame.GetOutput() != nil {
			break
		}
	}
	cancel()
	_ = stream.CloseResponse()
	pid, err := os.ReadFile(pipe)
	if err != nil {
		t.Fatal(err)
	}
	// The numbers are the sandbox's own, so the sandbox is asked.
	script := "while kill -0 " + strings.TrimSpace(string(pid)) + " 2>/dev/null; do sleep 0.05; done; echo dead"
	if got := b.run(client, id, "/bin/sh", "-c", script); got.Stdout != "dead\n" {
		t.Errorf("got %+v", got)
	}
}

func TestExecInASandboxThatEndsIsToldSo(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	stream := b.exec(b.ctx(), client, &sandboxv1.ExecStreamInit{SandboxId: id, Command: []string{"sleep", "1000"}})
	defer func() { _ = stream.CloseResponse() }()
	if frame, err := stream.Receive(); err != nil || frame.GetReady() == nil {
		t.Fatal(frame, err)
	}
	b.killGuest(id)
	frame, err := stream.Receive()
	if err != nil || frame.GetError().GetCode() != execInterrupted {
		t.Errorf("got %v, %v", frame, err)
	}
}

func TestCallsOnSandboxesThatDoNotRun(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	b.create(client, 1, shell("true"))
	b.await(client, newID(1), ended)
	for id, reason := range map[string]apierr.Reason{newID(1): apierr.SandboxNotRunning, newID(2): apierr.SandboxNotFound} {
		_, err := client.ReadFile(b.ctx(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: "/x"})
		if apierr.ReasonOf(err) != reason {
			t.Errorf("read of %s: %v", id, err)
		}
		stream := b.exec(b.ctx(), client, &sandboxv1.ExecStreamInit{SandboxId: id, Command: []string{"true"}})
		if _, err := stream.Receive(); apierr.ReasonOf(err) != reason {
			t.Errorf("exec in %s: %v", id, err)
		}
		_ = stream.CloseResponse()
		logs, err := client.StreamLogs(b.ctx(), &sandboxv1.StreamLogsRequest{SandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		if logs.Receive() || apierr.ReasonOf(logs.Err()) != reason {
			t.Errorf("logs of %s: %v", id, logs.Err())
		}
		_ = logs.Close()
	}
}

func TestFiles(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	var all bytes.Buffer
	for i := range 256 {
		all.WriteByte(byte(i))
	}
	path := filepath.Join(b.dir, "made", "file")
	for name, content := range map[string][]byte{"every byte": all.Bytes(), "empty": {}, "large": bytes.Repeat([]byte("x"), 20<<20)} {
		if _, err := client.WriteFile(b.ctx(), &sandboxv1.WriteFileRequest{SandboxId: id, Path: path, Content: content}); err != nil {
			t.Fatalf("write %s: %v", name, err)
		}
		read, err := client.ReadFile(b.ctx(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: path})
		if err != nil || !bytes.Equal(read.GetContent(), content) {
			t.Errorf("read %s: %d bytes, %v", name, len(read.GetContent()), err)
		}
	}
}

func TestFileErrorsHaveReasonsAndThePath(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	large := filepath.Join(b.dir, "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	for path, reason := range map[string]apierr.Reason{
		"/no/such/file": apierr.FileNotFound, "no-such-file": apierr.FileNotFound, "/tmp": apierr.FileIsDirectory, large: apierr.FileTooLarge,
	} {
		_, err := client.ReadFile(b.ctx(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: path})
		info := apierr.Info(err)
		if apierr.ReasonOf(err) != reason || info.GetMetadata()["filepath"] != path {
			t.Errorf("read %s: %v, %v", path, err, info)
		}
		if reason == apierr.FileTooLarge {
			want := map[string]string{
				"filepath": path, "operation": "read",
				"size_bytes": strconv.Itoa(maxFileBytes + 1), "max_size_bytes": strconv.Itoa(maxFileBytes),
			}
			if diff := cmp.Diff(want, info.GetMetadata()); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// logs reads a stream of logs until its end or, when there is one, until the
// text is there.
func (b *bench) logs(client runnerv1connect.RunnerServiceClient, request *sandboxv1.StreamLogsRequest, until string) (text string, last *sandboxv1.LogEntry) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx())
	defer cancel()
	stream, err := client.StreamLogs(ctx, request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		last = stream.Msg()
		text += string(last.GetData())
		if last.GetError() == nil && (last.GetLogSessionId() == "" || last.GetNextLogOffset() != request.GetResumeLogOffset()+uint64(len(text))) {
			b.t.Fatalf("entry %v after %d bytes", last, len(text))
		}
		if until != "" && strings.Contains(text, until) {
			return text, last
		}
	}
	if stream.Err() != nil {
		b.t.Fatal(stream.Err())
	}
	return text, last
}

func TestLogsPrintedAtTheStartAreReadable(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("echo one; echo two; echo three; sleep 1000"))
	if got, _ := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, TailLines: 2}, ""); got != "two\nthree\n" {
		t.Errorf("got %q", got)
	}
}

func TestAFiniteReadWaitsForTheFirstOutputOfASlowStart(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 0.5; echo at last; sleep 1000"))
	if got, _ := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id}, ""); got != "at last\n" {
		t.Errorf("got %q", got)
	}
}

func TestExecOutputIsNotInTheLogs(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("echo main; sleep 1000"))
	b.run(client, id, "echo", "exec")
	if got, _ := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id}, ""); got != "main\n" {
		t.Errorf("got %q", got)
	}
}

func TestFollowedLogsEndWithTheMainProcess(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	gate := filepath.Join(b.dir, "gate")
	id := b.mustRun(client, 1, shell("echo first; while [ ! -e "+gate+" ]; do sleep 0.05; done; echo last"))
	type answer struct {
		text string
		last *sandboxv1.LogEntry
	}
	followed := make(chan answer, 1)
	go func() {
		text, last := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true}, "")
		followed <- answer{text, last}
	}()
	b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true}, "first\n")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-followed; got.text != "first\nlast\n" || got.last.GetError() != nil {
		t.Errorf("followed %q, %v", got.text, got.last)
	}
}

func TestLogSessionIsResumed(t *testing.T) {
	b := newBench(t)
	client, stop := b.serve()
	gate := filepath.Join(b.dir, "gate")
	id := b.mustRun(client, 1, shell("echo first; while [ ! -e "+gate+" ]; do sleep 0.05; done; echo last; sleep 1000"))
	text, last := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true, Timestamps: true}, "first\n")
	if _, line, ok := strings.Cut(text, " "); !ok || line != "first\n" {
		t.Fatalf("got %q", text)
	}
	stop()
	client, _ = b.start()
	b.synced(client)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const cut = 5
	rest, _ := b.logs(client, &sandboxv1.StreamLogsRequest{
		SandboxId: id, Follow: true,
		ResumeLogSessionId: last.GetLogSessionId(), ResumeLogOffset: last.GetNextLogOffset() - cut,
	}, "last\n")
	if !strings.HasPrefix(rest, "irst\n") || !strings.HasSuffix(rest, "Z last\n") {
		t.Errorf("resumed with %q", rest)
	}
}

func TestLogSessionsThatCannotBeResumedAreToldInBand(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("echo first; sleep 1000"))
	_, last := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true}, "first\n")
	for code, request := range map[string]*sandboxv1.StreamLogsRequest{
		logSessionNotFound:     {SandboxId: id, Follow: true, ResumeLogSessionId: "unknown", ResumeLogOffset: 3},
		logInvalidResumeOffset: {SandboxId: id, Follow: true, ResumeLogSessionId: last.GetLogSessionId(), ResumeLogOffset: 1 << 40},
	} {
		if text, entry := b.logs(client, request, ""); text != "" || entry.GetError().GetCode() != code {
			t.Errorf("want %s: got %q, %v", code, text, entry)
		}
	}
}

func TestLogsRequestsThatContradictThemselvesAreRefused(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	for name, request := range map[string]*sandboxv1.StreamLogsRequest{
		"a negative tail":       {TailLines: -1},
		"resume without follow": {ResumeLogSessionId: "x"},
		"resume with a tail":    {ResumeLogSessionId: "x", Follow: true, TailLines: 1},
		"resume since a time":   {ResumeLogSessionId: "x", Follow: true, SinceTime: timestamppb.New(time.Now())},
		"an offset of nothing":  {ResumeLogOffset: 1},
		"another container":     {Container: "other"},
	} {
		request.SandboxId = id
		stream, err := client.StreamLogs(b.ctx(), request)
		if err != nil {
			t.Fatal(err)
		}
		if stream.Receive() || apierr.ReasonOf(stream.Err()) != apierr.InvalidRequest {
			t.Errorf("%s: %v", name, stream.Err())
		}
		_ = stream.Close()
	}
}
