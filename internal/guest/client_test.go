package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a guest's end of a connection, played by the test.
type peer struct {
	t      *testing.T
	conn   net.Conn
	reader *Reader
	writer *Writer
}

func (p *peer) read() *guestv1.Request {
	request := &guestv1.Request{}
	if err := p.reader.Read(request); err != nil {
		p.t.Errorf("guest reads: %v", err)
	}
	return request
}

func (p *peer) answer(responses ...*guestv1.Response) {
	for _, response := range responses {
		if err := p.writer.Write(response); err != nil {
			p.t.Errorf("guest answers: %v", err)
		}
	}
}

// clientWith returns a client whose every connection is served by serve.
func clientWith(t *testing.T, serve func(*peer)) *Client {
	t.Helper()
	served := make(chan struct{}, 100)
	connections := 0
	t.Cleanup(func() {
		for range connections {
			<-served
		}
	})
	return NewClient(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		connections++
		go func() {
			serve(&peer{t: t, conn: far, reader: NewReader(far), writer: NewWriter(far)})
			_ = far.Close()
			served <- struct{}{}
		}()
		return near, nil
	})
}

func done() *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Done{Done: &guestv1.Done{}}}
}

func output(data string) *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Output{Output: &guestv1.Output{Stream: 1, Data: []byte(data)}}}
}

func exit(code int32) *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Exit{Exit: &guestv1.Exit{Code: code}}}
}

func fileData(data string) *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_FileData{FileData: []byte(data)}}
}

func refusal(code guestv1.Error_Code) *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Error{Error: &guestv1.Error{Code: code, Message: "no", SizeBytes: 7}}}
}

func TestRefusalsAreTyped(t *testing.T) {
	client := clientWith(t, func(p *peer) {
		p.read()
		p.answer(refusal(guestv1.Error_TOO_LARGE))
	})
	_, err := client.ReadFile(t.Context(), "/x", 1)
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != guestv1.Error_TOO_LARGE || refused.SizeBytes != 7 {
		t.Fatalf("got %#v, expected TOO_LARGE with 7 bytes", err)
	}
}

func TestAGuestThatVanishesIsNoSuccess(t *testing.T) {
	client := clientWith(t, func(p *peer) { p.read() })
	if err := client.Ping(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Ping: %v, expected io.ErrUnexpectedEOF", err)
	}
	if err := client.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v, expected success: the guest has gone", err)
	}
}

func TestCancellingClosesTheConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	client := clientWith(t, func(p *peer) {
		p.read()
		p.answer(&guestv1.Response{Answer: &guestv1.Response_Started{Started: &guestv1.Started{Pid: 2}}})
		closed <- p.reader.Read(&guestv1.Request{})
	})
	session, err := client.Exec(ctx, &guestv1.Exec{Process: &guestv1.Process{Argv: []string{"cat"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	cancel()
	if _, err := session.Recv(); !errors.Is(err, context.Canceled) {
		t.Errorf("Recv: %v, expected context.Canceled", err)
	}
	if err := <-closed; err != io.EOF {
		t.Errorf("the guest saw %v, expected io.EOF", err)
	}
}

func TestAnExecEndsOnceWithItsExit(t *testing.T) {
	client := clientWith(t, func(p *peer) {
		p.read()
		p.answer(output("no such program\n"), exit(127))
	})
	session, err := client.Exec(t.Context(), &guestv1.Exec{Process: &guestv1.Process{Argv: []string{"nothing"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if session.Started() != nil {
		t.Error("a program that does not exist is said to have started")
	}
	first, err := session.Recv()
	if err != nil || string(first.GetOutput().GetData()) != "no such program\n" {
		t.Fatalf("first: %v, %v", first, err)
	}
	last, err := session.Recv()
	if err != nil || last.GetExit().GetCode() != 127 {
		t.Fatalf("last: %v, %v", last, err)
	}
	if _, err := session.Recv(); err != io.EOF {
		t.Errorf("after the exit: %v, expected io.EOF", err)
	}
	if _, err := session.Write([]byte("too late")); err != nil {
		t.Errorf("writing after the exit: %v, expected nothing", err)
	}
}

// TestOutputsThatAreThereComeAsOne: whatever is gathered, each stream's bytes
// arrive whole, in order, and where the streams take turns.
func TestOutputsThatAreThereComeAsOne(t *testing.T) {
	type piece struct {
		stream uint32
		data   []byte
	}
	rapid.Check(t, func(rt *rapid.T) {
		pieces := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) piece {
			size := rapid.SampledFrom([]int{0, 1, 100, gatherBytes, MaxChunkBytes / 2, MaxChunkBytes}).Draw(t, "size")
			return piece{rapid.SampledFrom([]uint32{1, 1, 1, 2}).Draw(t, "stream"), bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, size)}
		}), 0, 12).Draw(rt, "pieces")
		var wire bytes.Buffer
		writer := NewWriter(&wire)
		// What came in one turn of a stream.
		var sent []piece
		for _, p := range pieces {
			if err := writer.Write(&guestv1.Response{Answer: &guestv1.Response_Output{Output: &guestv1.Output{Stream: p.stream, Data: p.data}}}); err != nil {
				rt.Fatal(err)
			}
			if last := len(sent) - 1; last >= 0 && sent[last].stream == p.stream {
				sent[last].data = append(sent[last].data, p.data...)
			} else {
				sent = append(sent, piece{p.stream, slices.Clone(p.data)})
			}
		}
		if err := writer.Write(exit(3)); err != nil {
			rt.Fatal(err)
		}
		session := &ExecSession{call: &call{ctx: t.Context(), operation: "exec", reader: NewReader(&wire)}}
		var received []piece
		messages := 0
		for {
			response, err := session.Recv()
			if err != nil {
				rt.Fatal(err)
			}
			if response.GetExit() != nil {
				break
			}
			messages++
			output := response.GetOutput()
			if len(output.GetData()) > MaxChunkBytes {
				rt.Fatalf("an output of %d bytes, more than %d", len(output.GetData()), MaxChunkBytes)
			}
			if last := len(received) - 1; last >= 0 && received[last].stream == output.GetStream() {
				received[last].data = append(received[last].data, output.GetData()...)
			} else {
				received = append(received, piece{output.GetStream(), slices.Clone(output.GetData())})
			}
		}
		same := func(a, b piece) bool { return a.stream == b.stream && bytes.Equal(a.data, b.data) }
		if !slices.EqualFunc(sent, received, same) {
			rt.Fatalf("the output changed on the way: %d turns of the streams became %d", len(sent), len(received))
		}
		if messages > len(pieces) {
			rt.Fatalf("%d outputs became %d", len(pieces), messages)
		}
		if _, err := session.Recv(); err != io.EOF {
			rt.Fatalf("after the exit: %v, expected io.EOF", err)
		}
	})
}

// TestManySmallOutputsBecomeFewLargeOnes: programs write 4 KiB at a time.
func TestManySmallOutputsBecomeFewLargeOnes(t *testing.T) {
	const count, size = 1000, 4 << 10
	var wire bytes.Buffer
	writer := NewWriter(&wire)
	for range count {
		if err := writer.Write(output(strings.Repeat("x", size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Write(exit(0)); err != nil {
		t.Fatal(err)
	}
	session := &ExecSession{call: &call{ctx: t.Context(), operation: "exec", reader: NewReader(&wire)}}
	messages := 0
	for {
		response, err := session.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if response.GetExit() != nil {
			break
		}
		messages++
	}
	if most := 2 * count * size / MaxChunkBytes; messages > most {
		t.Errorf("%d outputs of %d bytes became %d, expected at most %d", count, size, messages, most)
	}
}

// TestAFailureBehindAnOutputComesAfterIt: what was gathered is not lost with it.
func TestAFailureBehindAnOutputComesAfterIt(t *testing.T) {
	var wire bytes.Buffer
	writer := NewWriter(&wire)
	for _, response := range []*guestv1.Response{output("a"), output("b"), refusal(guestv1.Error_INTERNAL)} {
		if err := writer.Write(response); err != nil {
			t.Fatal(err)
		}
	}
	session := &ExecSession{call: &call{ctx: t.Context(), operation: "exec", reader: NewReader(&wire)}}
	first, err := session.Recv()
	if err != nil || string(first.GetOutput().GetData()) != "ab" {
		t.Errorf("first: %v, %v", first, err)
	}
	var refused *Error
	if _, err := session.Recv(); !errors.As(err, &refused) {
		t.Errorf("then: %v, expected a refusal", err)
	}
}

func TestLongStdinIsCutIntoChunks(t *testing.T) {
	sent := bytes.Repeat([]byte("0123456789"), 20_000)
	var received []byte
	client := clientWith(t, func(p *peer) {
		p.read()
		p.answer(&guestv1.Response{Answer: &guestv1.Response_Started{Started: &guestv1.Started{}}})
		for {
			request := p.read()
			if request.GetCloseStdin() != nil {
				break
			}
			if len(request.GetStdin()) > MaxChunkBytes {
				t.Errorf("chunk of %d bytes", len(request.GetStdin()))
			}
			received = append(received, request.GetStdin()...)
		}
		p.answer(exit(0))
	})
	session, err := client.Exec(t.Context(), &guestv1.Exec{Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if n, err := session.Write(sent); n != len(sent) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(sent), err)
	}
	if err := session.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Recv(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, received) {
		t.Error("stdin changed on the way")
	}
}

func TestReadFileDeliversEverythingThenEOF(t *testing.T) {
	for name, chunks := range map[string][]string{"empty": nil, "one": {"a"}, "several": {"a", "bc", "def"}} {
		t.Run(name, func(t *testing.T) {
			client := clientWith(t, func(p *peer) {
				p.read()
				for _, chunk := range chunks {
					p.answer(fileData(chunk))
				}
				p.answer(done())
			})
			file, err := client.ReadFile(t.Context(), "/x", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			content, err := io.ReadAll(file)
			if err != nil || string(content) != strings.Join(chunks, "") {
				t.Errorf("got %q, %v", content, err)
			}
		})
	}
}

func TestAFileCutOffOnTheWayIsNoSuccess(t *testing.T) {
	client := clientWith(t, func(p *peer) {
		p.read()
		p.answer(fileData("half"))
	})
	file, err := client.ReadFile(t.Context(), "/x", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.ReadAll(file); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, expected io.ErrUnexpectedEOF", err)
	}
}

func TestAFailingSourceNeverEndsTheFile(t *testing.T) {
	ended := make(chan bool, 1)
	client := clientWith(t, func(p *peer) {
		for {
			request := &guestv1.Request{}
			if p.reader.Read(request) != nil {
				ended <- false
				return
			}
			if request.GetEndOfFile() != nil {
				ended <- true
				return
			}
		}
	})
	source := io.MultiReader(strings.NewReader("some"), failingReader{io.ErrUnexpectedEOF})
	if err := client.WriteFile(t.Context(), "/x", 0, source); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, expected the source's error", err)
	}
	if <-ended {
		t.Error("the guest was told that the file is complete")
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestStartSendsFilesThatDoNotFitBeforehand(t *testing.T) {
	var calls []string
	client := clientWith(t, func(p *peer) {
		switch request := p.read(); {
		case request.GetWriteFile() != nil:
			calls = append(calls, "write "+request.GetWriteFile().GetPath())
			for p.read().GetEndOfFile() == nil {
			}
		case request.GetStart() != nil:
			if len(request.GetStart().GetFiles()) != 0 {
				t.Error("the files were sent twice")
			}
			calls = append(calls, "start")
		}
		p.answer(done())
	})
	content := make([]byte, MaxMessageBytes)
	err := client.Start(t.Context(), &guestv1.Start{
		Process: &guestv1.Process{Argv: []string{"x"}},
		Files:   []*guestv1.File{{Path: "/a", Content: content}, {Path: "/b"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(calls, ", "), "write /a, write /b, start"; got != want {
		t.Errorf("calls: %s, expected %s", got, want)
	}
}

func TestStartRefusesAnEnvironmentThatDoesNotFit(t *testing.T) {
	client := clientWith(t, func(*peer) {})
	err := client.Start(t.Context(), &guestv1.Start{Process: &guestv1.Process{Env: []string{"X=" + strings.Repeat("x", MaxMessageBytes)}}})
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != guestv1.Error_INVALID {
		t.Errorf("got %v, expected INVALID", err)
	}
}

func TestStopSendsMilliseconds(t *testing.T) {
	client := clientWith(t, func(p *peer) {
		if got := p.read().GetStop().GetGraceMillis(); got != 1500 {
			t.Errorf("grace of %d ms, expected 1500", got)
		}
		p.answer(done())
	})
	if err := client.Stop(t.Context(), 1500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
}
