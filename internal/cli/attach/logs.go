package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
)

// The codes of in-band errors after which a follower can go on.
const (
	codeInterrupted     = "STREAM_INTERRUPTED"
	codeSessionNotFound = "SESSION_NOT_FOUND"
	codeReplayGap       = "REPLAY_GAP"
	codeUnavailable     = "RUNNER_UNAVAILABLE"
	codeDraining        = "RUNNER_DRAINING"
)

// reconnects is how often in a row a follower tries again without having
// received anything.
const reconnects = 5

// Wait pauses, unless ctx ends first.
type Wait func(ctx context.Context, d time.Duration) error

// Sleep is the Wait of real time.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Logs copies what the main process of a sandbox writes. With request.follow it
// goes on until the process ends, through interruptions of the connection.
func Logs(ctx context.Context, sandboxes sandboxv1connect.SandboxServiceClient, request *sandboxv1.StreamLogsRequest, out io.Writer, wait Wait) error {
	follower := &follower{sandboxes: sandboxes, wanted: request, out: out}
	for failures := 0; ; failures++ {
		received := follower.received
		err := follower.once(ctx)
		if err == nil || !request.GetFollow() || !canContinue(err) {
			return err
		}
		if follower.received > received {
			failures = 0
		}
		if failures == reconnects {
			return fmt.Errorf("the log stream broke %d times in a row: %w", failures+1, err)
		}
		if e := wait(ctx, min(100*time.Millisecond<<failures, 2*time.Second)); e != nil {
			return e
		}
	}
}

type follower struct {
	sandboxes sandboxv1connect.SandboxServiceClient
	wanted    *sandboxv1.StreamLogsRequest
	out       io.Writer

	// Where to go on in the server's session.
	session string
	offset  uint64
	// The newest moment of what has been written, for when the session is lost.
	last *timestamppb.Timestamp
	// received counts entries with data.
	received int
}

func (f *follower) request() *sandboxv1.StreamLogsRequest {
	request := proto.CloneOf(f.wanted)
	switch {
	case f.session != "":
		// A session keeps the format and the place it was started with.
		request.TailLines, request.SinceTime, request.Timestamps = 0, nil, false
		request.ResumeLogSessionId, request.ResumeLogOffset = f.session, f.offset
	case f.received > 0:
		request.TailLines, request.SinceTime = 0, timestamppb.Now()
		if f.last != nil {
			request.SinceTime = timestamppb.New(f.last.AsTime().Add(time.Nanosecond))
		}
	}
	return request
}

func (f *follower) once(ctx context.Context) error {
	// Ends the call when the output cannot be written.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.sandboxes.StreamLogs(ctx, f.request())
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		entry := stream.Msg()
		if e := entry.GetError(); e != nil {
			if e.GetCode() != codeInterrupted {
				f.session, f.offset = "", 0
			}
			return &StreamError{Code: e.GetCode(), Message: e.GetMessage()}
		}
		if _, err := f.out.Write(entry.GetData()); err != nil {
			return fmt.Errorf("pass the log on: %w", err)
		}
		f.received++
		if entry.GetLogSessionId() != "" {
			f.session, f.offset = entry.GetLogSessionId(), entry.GetNextLogOffset()
		}
		if entry.GetTimestamp() != nil {
			f.last = entry.GetTimestamp()
		}
	}
	return stream.Err()
}

// canContinue says whether asking again makes sense.
func canContinue(err error) bool {
	var inBand *StreamError
	if errors.As(err, &inBand) {
		switch inBand.Code {
		case codeInterrupted, codeSessionNotFound, codeReplayGap, codeUnavailable, codeDraining:
			return true
		}
		return false
	}
	var sent *connect.Error
	if !errors.As(err, &sent) {
		return false
	}
	switch sent.Code() {
	case connect.CodeUnavailable, connect.CodeInternal, connect.CodeUnknown:
		return true
	default:
		return false
	}
}
