package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// The server hears of a sandbox's end a little after the commands in it have
// been killed: that long, and that often, Ending looks.
const (
	endingPause = 100 * time.Millisecond
	endingLooks = 20
	// endingTimeout is for a server that does not answer.
	endingTimeout = 5 * time.Second
)

// KilledCode is what a command ends with that was killed (SIGKILL), as all are
// that still run when their sandbox ends.
const KilledCode = 128 + 9

// Exec is attach.Exec, and when the command was cut off says why on standard
// error, as far as the server knows.
func (s Sandboxes) Exec(ctx context.Context, streams *iostreams.IO, options attach.ExecOptions) (int, error) {
	code, err := attach.Exec(ctx, s.API, streams, options)
	var interrupted *attach.InterruptedError
	if ctx.Err() != nil || code != KilledCode && !errors.As(err, &interrupted) {
		return code, err
	}
	why := Explain(s.Ending(ctx, options.SandboxID))
	if why == "" && err == nil {
		why = fmt.Sprintf("the command was killed (SIGKILL); sandbox %s goes on; if it ran out of memory, allow it more with --memory", options.SandboxID)
	}
	if why != "" {
		fmt.Fprintln(streams.Err, "sandbar:", why)
	}
	return code, err
}

// Ending looks whether a sandbox has ended, or is about to, under a command
// that was killed in it. It answers with the sandbox as it was last seen; nil
// when nothing can be learned.
func (s Sandboxes) Ending(ctx context.Context, id string) *sandboxv1.Sandbox {
	ctx, cancel := context.WithTimeout(ctx, endingTimeout)
	defer cancel()
	var last *sandboxv1.Sandbox
	for look := 1; ; look++ {
		sandbox, err := s.API.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
		if err != nil {
			return last
		}
		last = sandbox
		if look == endingLooks || Ended(last.GetStatus().GetState()) || s.Wait(ctx, endingPause) != nil {
			return last
		}
	}
}

// Explain says in one line why a command in the sandbox was cut off, as the
// server reports it, and what to do about it; empty when the sandbox is not the
// cause as far as one can see.
func Explain(sandbox *sandboxv1.Sandbox) string {
	status := sandbox.GetStatus()
	state := status.GetState()
	if sandbox == nil || !Ended(state) && state != sandboxv1.State_STATE_TERMINATING {
		return ""
	}
	reason := status.GetStateReason()
	if reason == "" {
		reason = "the server gives no reason"
	}
	return fmt.Sprintf("sandbox %s is %s: %s; %s",
		sandbox.GetSandboxId(), output.Word(state, "STATE_"), reason, advice(status))
}

// advice is what the states and times tell to do. Reasons are for people and
// are not read by programs.
func advice(status *sandboxv1.SandboxStatus) string {
	switch {
	case livedItsTime(status):
		return "allow it more time with --lifetime"
	case status.GetState() == sandboxv1.State_STATE_FAILED:
		return "if it ran out of memory, allow it more with --memory"
	default:
		return "run it again if it was not meant to end"
	}
}

func livedItsTime(status *sandboxv1.SandboxStatus) bool {
	lifetime := time.Duration(status.GetEffectiveMaxLifetimeSeconds()) * time.Second
	if lifetime == 0 || status.GetEndTime() == nil {
		return false
	}
	return status.GetEndTime().AsTime().Sub(status.GetCreateTime().AsTime()) >= lifetime
}
