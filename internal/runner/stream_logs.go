package runner

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/runner/outputlog"
)

// The codes of the entry that ends a stream of logs early.
const (
	logSessionNotFound     = "SESSION_NOT_FOUND"
	logReplayGap           = "REPLAY_GAP"
	logInvalidResumeOffset = "INVALID_RESUME_OFFSET"
	logInterrupted         = "STREAM_INTERRUPTED"
)

// A finite read in the first earlyLife of a sandbox waits until output has come
// and has then been quiet for quietTime, at most until earlyLife is over: what
// a process prints at its start is on its way when the sandbox becomes RUNNING,
// and a shell in gVisor on a busy machine takes a second to get there.
const (
	earlyLife = 3 * time.Second
	quietTime = 150 * time.Millisecond
)

// StreamLogs sends the main process's output.
func (s *service) StreamLogs(ctx context.Context, request *sandboxv1.StreamLogsRequest, stream *connect.ServerStream[sandboxv1.LogEntry]) error {
	if err := checkLogsRequest(request); err != nil {
		return err
	}
	sandbox, err := s.target(request.GetSandboxId(), request.GetContainer())
	if err != nil {
		return err
	}
	switch state := sandbox.state(); state {
	case sandboxv1.State_STATE_CREATING, sandboxv1.State_STATE_RUNNING:
	default:
		return errNotRunning(sandbox.id, state)
	}
	if !request.GetFollow() {
		if err := sandbox.settleOutput(ctx); err != nil {
			return err
		}
	}
	session, err := sandbox.logSession(request)
	if errors.Is(err, outputlog.ErrUnknownSession) {
		return stream.Send(logError(logSessionNotFound, "the log session is not known here; start a new one"))
	}
	if err != nil {
		return err
	}
	output, err := sandbox.output.OpenStream(session, request.GetResumeLogOffset(), request.GetFollow())
	switch {
	case errors.Is(err, outputlog.ErrGap):
		return stream.Send(logError(logReplayGap, "the output at that offset is not kept any more; start a new session"))
	case errors.Is(err, outputlog.ErrBeyond):
		return stream.Send(logError(logInvalidResumeOffset, "resume_log_offset lies behind all that the session has sent"))
	case err != nil:
		return err
	}
	defer output.Close()
	return sendLogs(ctx, s.leaving, output, session.ID(), stream)
}

func sendLogs(ctx, leaving context.Context, output *outputlog.Stream, session string, stream *connect.ServerStream[sandboxv1.LogEntry]) error {
	for {
		chunk, err := output.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, outputlog.ErrGap):
			return stream.Send(logError(logReplayGap, "output was dropped because it was read too slowly; start a new session"))
		case err != nil && leaving.Err() != nil:
			return stream.Send(logError(logInterrupted, "the runner is stopping; resume the session"))
		case err != nil:
			return err
		}
		if err := stream.Send(&sandboxv1.LogEntry{
			Data:          chunk.Data,
			Timestamp:     timestamppb.New(chunk.Time),
			LogSessionId:  session,
			NextLogOffset: chunk.NextOffset,
		}); err != nil {
			return err
		}
	}
}

func logError(code, message string) *sandboxv1.LogEntry {
	return &sandboxv1.LogEntry{Error: &sandboxv1.LogStreamError{Code: code, Message: message}}
}

func checkLogsRequest(request *sandboxv1.StreamLogsRequest) error {
	var wrong []apierr.Violation
	refuse := func(bad bool, field, description string) {
		if bad {
			wrong = append(wrong, apierr.Violation{Field: field, Description: description, Reason: "INVALID"})
		}
	}
	refuse(request.GetTailLines() < 0, "tail_lines", "is negative; write 0 for all lines")
	refuse(request.GetSinceTime() != nil && request.GetSinceTime().CheckValid() != nil, "since_time", "is no valid time")
	if request.GetResumeLogSessionId() == "" {
		refuse(request.GetResumeLogOffset() != 0, "resume_log_offset", "means nothing without resume_log_session_id")
		return apierr.Invalid(apierr.InvalidRequest, wrong)
	}
	const inherited = "cannot be combined with resume_log_session_id, whose session has it already; leave it out"
	refuse(!request.GetFollow(), "follow", "must be true to resume a session")
	refuse(request.GetTailLines() > 0, "tail_lines", inherited)
	refuse(request.GetSinceTime() != nil, "since_time", inherited)
	refuse(request.GetTimestamps(), "timestamps", inherited)
	return apierr.Invalid(apierr.InvalidRequest, wrong)
}

// logSession begins a session or finds the one to resume.
func (s *sandbox) logSession(request *sandboxv1.StreamLogsRequest) (outputlog.Session, error) {
	if id := request.GetResumeLogSessionId(); id != "" {
		return outputlog.ParseSession(id, s.id)
	}
	selection := outputlog.Selection{TailLines: int64(request.GetTailLines()), Timestamps: request.GetTimestamps()}
	if since := request.GetSinceTime(); since != nil {
		selection.Since = since.AsTime()
	}
	return s.output.NewSession(s.id, selection)
}

// settleOutput waits until output that is on its way has come.
func (s *sandbox) settleOutput(ctx context.Context) error {
	clock := s.host.clock
	start := s.snapshot().Status.GetStartTime()
	if start == nil {
		return nil
	}
	left := start.AsTime().Add(earlyLife).Sub(clock.Now())
	if left <= 0 {
		return nil
	}
	over := clock.NewTimer(left)
	defer over.Stop()
	for {
		changed := s.output.Changed()
		quiet := clock.NewTimer(quietTime)
		passed := quiet.C()
		if s.output.Source() == 0 {
			// Nothing has come that could be quiet.
			passed = nil
		}
		select {
		case <-changed:
			quiet.Stop()
		case <-passed:
			return nil
		case <-over.C():
			quiet.Stop()
			return nil
		case <-ctx.Done():
			quiet.Stop()
			return ctx.Err()
		}
	}
}
