package gateway

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// streamInterrupted tells clients to come back and resume where they were.
const streamInterrupted = "STREAM_INTERRUPTED"

// StreamLogs implements SandboxService. Sessions, offsets and formats are the
// runner's; a caller that follows and loses the runner is told in the stream
// to resume.
func (g *Gateway) StreamLogs(ctx context.Context, req *sandboxv1.StreamLogsRequest, stream *connect.ServerStream[sandboxv1.LogEntry]) error {
	if err := checkLogs(req); err != nil {
		return err
	}
	sb, s, err := g.operable(ctx, req.GetSandboxId(), req.GetContainer())
	if err != nil {
		return err
	}
	sb.readers.enter()
	defer sb.readers.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := s.client.StreamLogs(ctx, req)
	if err != nil {
		return relayed(ctx, s, err)
	}
	defer func() {
		// Before closing, which would read to the end of what is still sent.
		cancel()
		_ = up.Close()
	}()
	for up.Receive() {
		if err := stream.Send(up.Msg()); err != nil {
			return err
		}
	}
	err = relayed(ctx, s, up.Err())
	var gone *apierr.Error
	if req.GetFollow() && errors.As(err, &gone) && gone.Reason() == apierr.RunnerUnavailable {
		return stream.Send(&sandboxv1.LogEntry{Error: &sandboxv1.LogStreamError{
			Code: streamInterrupted, Message: "the connection to the sandbox's runner was lost",
		}})
	}
	return err
}

func checkLogs(req *sandboxv1.StreamLogsRequest) error {
	var v violations
	v.sandboxID(req.GetSandboxId())
	if req.GetTailLines() < 0 {
		v.add("tail_lines", "OUT_OF_RANGE", "%d is negative; 0 means all lines", req.GetTailLines())
	}
	if since := req.GetSinceTime(); since != nil && !since.IsValid() {
		v.add("since_time", "INVALID", "is not a time")
	}
	if req.GetResumeLogSessionId() != "" {
		if !req.GetFollow() {
			v.add("resume_log_session_id", "NEEDS_FOLLOW", "only a stream that follows can be resumed; set follow")
		}
		if req.GetTailLines() != 0 || req.GetSinceTime() != nil || req.GetTimestamps() {
			v.add("resume_log_session_id", "EXCLUSIVE",
				"a resumed stream goes on as it began; leave out tail_lines, since_time and timestamps")
		}
	}
	return v.err()
}
