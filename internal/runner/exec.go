package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/guest"
)

// execInterrupted is the code of the frame that ends an exec whose sandbox
// ended first.
const execInterrupted = "EXEC_INTERRUPTED"

type execStream = connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]

// StreamExec runs a process beside the main one. The end of the call's context
// kills its process group; the caller's half-close is only the end of stdin.
func (s *service) StreamExec(ctx context.Context, stream *execStream) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) {
		return apierr.New(apierr.InvalidRequest, "the stream carries no message; send init first")
	}
	if err != nil {
		return err
	}
	init := first.GetInit()
	if init == nil {
		return apierr.New(apierr.InvalidRequest, "the first message of the stream must be init")
	}
	if len(init.GetCommand()) == 0 {
		return apierr.New(apierr.InvalidRequest, "command: is empty; name a program and its arguments")
	}
	sandbox, err := s.target(init.GetSandboxId(), init.GetContainer())
	if err != nil {
		return err
	}
	r, err := sandbox.running()
	if err != nil {
		return err
	}
	session, err := sandbox.guest.Exec(ctx, &guestv1.Exec{Process: r.Process.exec(init), Stdin: true})
	if err != nil {
		return sandbox.guestError(ctx, "exec", err)
	}
	var stdin sync.WaitGroup
	defer stdin.Wait()
	defer stopReceiving(ctx)
	defer func() {
		_ = session.Close() // after the exit there is nothing left to fail
	}()
	stdin.Go(func() { feed(stream, session) })

	ready := &sandboxv1.ExecStreamReady{ReadyTime: timestamppb.New(s.runner.config.Clock.Now())}
	if err := stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Ready{Ready: ready}}); err != nil {
		return err
	}
	return relay(ctx, stream, session)
}

// relay sends the process's output and, after all of it, its exit.
func relay(ctx context.Context, stream *execStream, session *guest.ExecSession) error {
	for {
		response, err := session.Recv()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Error{
				Error: &sandboxv1.ExecStreamError{
					Code:    execInterrupted,
					Message: "the sandbox ended, or its guest failed, while the command ran",
				},
			}})
		}
		if exit := response.GetExit(); exit != nil {
			return stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Exit{
				Exit: &sandboxv1.ExecStreamExit{ExitCode: exit.GetCode(), CompletedTime: exit.GetTime()},
			}})
		}
		output := response.GetOutput()
		channel := sandboxv1.ExecStreamOutput_STREAM_STDOUT
		if output.GetStream() == 2 {
			channel = sandboxv1.ExecStreamOutput_STREAM_STDERR
		}
		if err := stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Output{
			Output: &sandboxv1.ExecStreamOutput{Stream: channel, Data: output.GetData()},
		}}); err != nil {
			return err
		}
	}
}

// feed passes on what the caller sends until it half-closes, or is cut off.
// What comes after the process's end, or after close, is ignored.
func feed(stream *execStream, session *guest.ExecSession) {
	closed := false
	for {
		request, err := stream.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) && !closed {
				_ = session.CloseStdin() // fails only when the process is gone
			}
			return
		}
		switch message := request.GetMessage().(type) {
		case *sandboxv1.ExecStreamRequest_Stdin:
			if !closed {
				_, err = session.Write(message.Stdin)
			}
		case *sandboxv1.ExecStreamRequest_Resize:
			err = session.Resize(message.Resize.GetWidth(), message.Resize.GetHeight())
		case *sandboxv1.ExecStreamRequest_Close:
			if !closed {
				err = session.CloseStdin()
			}
			closed = true
		}
		if err != nil {
			// The session has ended; its other half says how.
			return
		}
	}
}

// guestError turns what a guest's call answers into an error for clients.
func (s *sandbox) guestError(ctx context.Context, operation string, err error) error {
	var refusal *guest.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &refusal) && refusal.Code == guestv1.Error_INVALID:
		if _, running := s.running(); running != nil {
			return running
		}
		return apierr.New(apierr.InvalidRequest, "%s: %s", operation, refusal.Message).Because(err)
	case errors.As(err, &refusal):
		return fmt.Errorf("%s: %w", operation, err)
	}
	if _, running := s.running(); running != nil {
		return running
	}
	return apierr.New(apierr.SandboxNotRunning, "sandbox %s does not answer; it may have just ended", s.id).
		With("sandbox_id", s.id).Because(err)
}
