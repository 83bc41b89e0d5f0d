// Package attach joins the streams of this program to a process in a sandbox:
// Exec to a new process, Logs to what the main process writes.
//
// Nothing is buffered beyond one frame: a reader that is slow slows the process
// down, through the flow control of the connection.
package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

// frameBytes is the most that one frame of input carries.
const frameBytes = 32 << 10

// ErrNoExit says that the stream ended and nothing told how the process did.
var ErrNoExit = errors.New("the stream ended before the command's exit code arrived")

// InterruptedError is a command that was started and of which nothing tells how
// it ended: its outcome is unknown.
type InterruptedError struct{ cause error }

// Error is part of error.
func (e *InterruptedError) Error() string {
	return "the command was started, but how it ended is unknown: " + e.cause.Error()
}

// Unwrap returns the cause.
func (e *InterruptedError) Unwrap() error { return e.cause }

// StreamError is what a stream says instead of an exit code.
type StreamError struct {
	Code    string
	Message string
}

// Error is part of error.
func (e *StreamError) Error() string {
	if e.Code == "" {
		return e.Message
	}
	return e.Message + " (" + e.Code + ")"
}

// ExecOptions say what to run.
type ExecOptions struct {
	SandboxID string
	// Command is an argument vector; no shell reads it.
	Command []string
	// Env is added to the container's own.
	Env map[string]string
	// Stdin passes the input on; without it the command reads end of file.
	Stdin bool
	// TTY gives the command a terminal. Its output then is one stream.
	TTY bool
}

type execStream = connect.BidiStreamForClientSimple[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]

// Exec runs a command in a sandbox and returns its exit code. The end of ctx
// ends the command, with all its children. What fails once the command runs is
// an InterruptedError.
func Exec(ctx context.Context, sandboxes sandboxv1connect.SandboxServiceClient, streams *iostreams.IO, options ExecOptions) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	stream, err := sandboxes.StreamExec(ctx)
	if err != nil {
		return 0, err
	}
	session := &execSession{streams: streams, options: options, stream: stream, abandon: cancel}
	defer func() { _ = stream.CloseResponse() }()
	// HTTP/2 heeds the end of the context only once it has sent the request to
	// its end, and a command that takes input keeps that open.
	stopClosing := context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })
	defer stopClosing()

	if options.TTY {
		restore, err := streams.Raw()
		if err != nil {
			return 0, fmt.Errorf("put the terminal into raw mode: %w", err)
		}
		defer restore()
	}
	if err := session.start(); err != nil {
		return 0, err
	}
	input, inputCtx := errgroup.WithContext(ctx)
	started := false
	code, err := session.receive(func() {
		started = true
		session.startInput(inputCtx, input)
	})
	cancel()
	// What the input still meets after the command has ended does not matter.
	if inputErr := input.Wait(); err != nil && errors.Is(inputErr, errInput) {
		err = inputErr
	}
	if err != nil && started {
		return 0, &InterruptedError{cause: err}
	}
	return code, err
}

type execSession struct {
	streams *iostreams.IO
	options ExecOptions
	stream  *execStream
	// abandon ends the stream when there is no way to go on.
	abandon context.CancelFunc
	// sending serializes frames of input and sizes of the terminal.
	sending sync.Mutex
}

func (s *execSession) start() error {
	init := &sandboxv1.ExecStreamInit{
		SandboxId: s.options.SandboxID,
		Command:   s.options.Command,
		Env:       s.options.Env,
		Tty:       s.options.TTY,
	}
	if s.options.TTY {
		size := s.streams.Size()
		init.TtyWidth, init.TtyHeight = size.Width, size.Height
	}
	err := s.stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Init{Init: init}})
	// io.EOF means that the server has answered already; Receive says what.
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !s.options.Stdin && !s.options.TTY {
		return s.stream.CloseRequest()
	}
	return nil
}

// receive writes the output until the exit code comes. ready is called once,
// when the process takes input.
func (s *execSession) receive(ready func()) (int, error) {
	for started := false; ; {
		response, err := s.stream.Receive()
		if errors.Is(err, io.EOF) {
			return 0, ErrNoExit
		}
		if err != nil {
			return 0, err
		}
		switch message := response.GetMessage().(type) {
		case *sandboxv1.ExecStreamResponse_Ready:
			if !started {
				started = true
				ready()
			}
		case *sandboxv1.ExecStreamResponse_Output:
			out := s.streams.Out
			if message.Output.GetStream() == sandboxv1.ExecStreamOutput_STREAM_STDERR {
				out = s.streams.Err
			}
			if _, err := out.Write(message.Output.GetData()); err != nil {
				return 0, fmt.Errorf("pass the command's output on: %w", err)
			}
		case *sandboxv1.ExecStreamResponse_Exit:
			return int(message.Exit.GetExitCode()), nil
		case *sandboxv1.ExecStreamResponse_Error:
			return 0, &StreamError{Code: message.Error.GetCode(), Message: message.Error.GetMessage()}
		}
	}
}

func (s *execSession) startInput(ctx context.Context, group *errgroup.Group) {
	if s.options.TTY && s.streams.OutIsTerminal() {
		group.Go(func() error {
			s.streams.Resizes(ctx, func(size iostreams.Size) {
				// A size that cannot be sent is replaced by the next one, or the
				// stream has ended.
				_ = s.send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Resize{
					Resize: &sandboxv1.ExecStreamResize{Width: size.Width, Height: size.Height},
				}})
			})
			return nil
		})
	}
	if s.options.Stdin {
		group.Go(func() error { return s.sendInput(ctx) })
	}
}

func (s *execSession) send(request *sandboxv1.ExecStreamRequest) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.Send(request)
}

// errInput: it is the input that failed, not the stream.
var errInput = errors.New("read the input")

func (s *execSession) sendInput(ctx context.Context) error {
	input, closeInput, err := s.streams.Input(ctx)
	if err != nil {
		s.abandon()
		return fmt.Errorf("%w: %w", errInput, err)
	}
	defer closeInput()
	buffer := make([]byte, frameBytes)
	for {
		n, err := input.Read(buffer)
		if n > 0 {
			if err := s.send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: buffer[:n]}}); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return s.send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Close{Close: &sandboxv1.ExecStreamClose{}}})
		case err != nil:
			s.abandon()
			return fmt.Errorf("%w: %w", errInput, err)
		}
	}
}
