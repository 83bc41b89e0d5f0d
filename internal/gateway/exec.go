package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

const (
	// defaultOutputBytes is how much of each stream Exec keeps when the caller
	// does not say.
	defaultOutputBytes = 8 << 20
	// maxOutputBytes is the most that a caller may ask for; two of them fit into
	// one message.
	maxOutputBytes = 32 << 20
)

// errNoExit is why a stream that ended without an exit status failed: clients
// take one that ends well for success (trap 3).
var errNoExit = errors.New("the runner ended the command's stream without an exit status")

// StreamExec implements SandboxService. Every frame is passed on as it comes;
// HTTP/2's flow control holds the process back when the caller reads slowly.
// When the caller closes its side, the process's input ends; when the call is
// cancelled or its deadline passes, the runner kills the process group.
func (g *Gateway) StreamExec(ctx context.Context, stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) error {
	first, err := stream.Receive()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	start := first.GetInit()
	if err := checkExec(start.GetSandboxId(), start.GetCommand(), start.GetEnv(), start != nil); err != nil {
		return err
	}
	_, s, err := g.operable(ctx, start.GetSandboxId(), start.GetContainer())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := s.client.StreamExec(ctx)
	if err != nil {
		return relayed(ctx, s, err)
	}
	defer hangUp(cancel, up)
	// When the runner has ended the stream already, Receive says why.
	if err := up.Send(first); err != nil && !errors.Is(err, io.EOF) {
		return relayed(ctx, s, err)
	}
	if !g.background.Go(func() {
		if err := forward(stream, up); err != nil {
			cancel()
		}
	}) {
		return apierr.New(apierr.BackendUnavailable, "the server is shutting down; try again")
	}
	over := false
	for {
		frame, err := up.Receive()
		switch {
		case errors.Is(err, io.EOF) && over:
			return nil
		case errors.Is(err, io.EOF):
			return runnerUnavailable(s.identity.RunnerID).Because(errNoExit)
		case err != nil:
			return relayed(ctx, s, err)
		}
		over = over || frame.GetExit() != nil || frame.GetError() != nil
		if err := stream.Send(frame); err != nil {
			return err
		}
	}
}

// hangUp ends a stream, whether or not all of it was read.
func hangUp(cancel context.CancelFunc, up *connect.BidiStreamForClientSimple[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) {
	// Before closing, which would read to the end of what is still sent.
	cancel()
	_ = up.CloseResponse()
}

// forward passes the caller's frames on until it closes its side (trap 1), the
// runner takes no more, or the call is over, which ends Receive.
func forward(
	from *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse],
	to *connect.BidiStreamForClientSimple[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse],
) error {
	for {
		frame, err := from.Receive()
		if errors.Is(err, io.EOF) {
			return to.CloseRequest()
		}
		if err != nil {
			return err
		}
		if err := to.Send(frame); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func checkExec(sandboxID string, command []string, env map[string]string, isInit bool) error {
	var v violations
	if !isInit {
		v.add("init", "REQUIRED", "the first message of the stream must be init")
		return v.err()
	}
	v.sandboxID(sandboxID)
	if len(command) == 0 || command[0] == "" {
		v.add("command", "REQUIRED", "is required: the program and its arguments")
	}
	for i, arg := range command {
		v.noNUL(fmt.Sprintf("command[%d]", i), arg)
	}
	v.environment("env", env)
	return v.err()
}

// Exec implements SandboxService: it runs a command to its end and keeps what
// it wrote, up to a limit for each stream.
func (g *Gateway) Exec(ctx context.Context, req *sandboxv1.ExecRequest) (*sandboxv1.ExecResponse, error) {
	if err := checkExec(req.GetSandboxId(), req.GetCommand(), req.GetEnv(), true); err != nil {
		return nil, err
	}
	limit := int(req.GetMaxOutputBytes())
	switch {
	case limit < 0 || limit > maxOutputBytes:
		var v violations
		v.add("max_output_bytes", "OUT_OF_RANGE", "%d is not between 0 and %d; use StreamExec for more", limit, maxOutputBytes)
		return nil, v.err()
	case limit == 0:
		limit = defaultOutputBytes
	}
	_, s, err := g.operable(ctx, req.GetSandboxId(), req.GetContainer())
	if err != nil {
		return nil, err
	}
	resp, err := s.exec(ctx, req, limit)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, apierr.New(apierr.CommandTimeout, "the command was still running when the call's deadline passed, and was killed")
	}
	return resp, err
}

func (s *session) exec(ctx context.Context, req *sandboxv1.ExecRequest, limit int) (*sandboxv1.ExecResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := s.client.StreamExec(ctx)
	if err != nil {
		return nil, relayed(ctx, s, err)
	}
	defer hangUp(cancel, up)
	start := &sandboxv1.ExecStreamInit{
		SandboxId: req.GetSandboxId(), Command: req.GetCommand(), Env: req.GetEnv(), Container: req.GetContainer(),
	}
	err = up.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Init{Init: start}})
	if err == nil {
		err = up.CloseRequest()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, relayed(ctx, s, err)
	}
	stdout, stderr := capture{limit: limit}, capture{limit: limit}
	for {
		frame, err := up.Receive()
		if errors.Is(err, io.EOF) {
			return nil, runnerUnavailable(s.identity.RunnerID).Because(errNoExit)
		}
		if err != nil {
			return nil, relayed(ctx, s, err)
		}
		switch m := frame.GetMessage().(type) {
		case *sandboxv1.ExecStreamResponse_Output:
			if m.Output.GetStream() == sandboxv1.ExecStreamOutput_STREAM_STDERR {
				stderr.add(m.Output.GetData())
			} else {
				stdout.add(m.Output.GetData())
			}
		case *sandboxv1.ExecStreamResponse_Exit:
			return &sandboxv1.ExecResponse{
				Stdout: stdout.kept, StdoutTruncated: stdout.truncated(), StdoutBytesProduced: stdout.produced,
				Stderr: stderr.kept, StderrTruncated: stderr.truncated(), StderrBytesProduced: stderr.produced,
				ExitCode: m.Exit.GetExitCode(),
			}, nil
		case *sandboxv1.ExecStreamResponse_Error:
			return nil, apierr.New(apierr.Internal, "the command could not be followed to its end: %s", m.Error.GetMessage()).
				With("code", m.Error.GetCode())
		}
	}
}

// capture keeps the beginning of a stream and counts all of it.
type capture struct {
	limit    int
	kept     []byte
	produced int64
}

func (c *capture) add(data []byte) {
	c.produced += int64(len(data))
	c.kept = append(c.kept, data[:min(len(data), c.limit-len(c.kept))]...)
}

func (c *capture) truncated() bool { return c.produced > int64(len(c.kept)) }
