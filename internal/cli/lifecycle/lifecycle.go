// Package lifecycle waits for sandboxes to come and to go.
package lifecycle

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// The pauses between two looks at a sandbox grow from the first to the longest.
const (
	firstPause   = 15 * time.Millisecond
	longestPause = time.Second
)

// createAttempts is how often Create asks, when the answer got lost.
const createAttempts = 4

// Sandboxes does what commands do with one sandbox after another.
type Sandboxes struct {
	API  sandboxv1connect.SandboxServiceClient
	Wait attach.Wait
}

// EndedError is a sandbox that ended before it was of use.
type EndedError struct{ Sandbox *sandboxv1.Sandbox }

// Error is part of error.
func (e *EndedError) Error() string {
	status := e.Sandbox.GetStatus()
	text := fmt.Sprintf("sandbox %s is %s", e.Sandbox.GetSandboxId(), output.Word(status.GetState(), "STATE_"))
	if status.ExitCode != nil {
		text += fmt.Sprintf(", its main process ended with code %d", status.GetExitCode())
	}
	if reason := status.GetStateReason(); reason != "" {
		text += ": " + reason
	}
	return text
}

// Create asks for a sandbox. When the answer gets lost it asks again under the
// same request id, so that there is one sandbox and no more.
func (s Sandboxes) Create(ctx context.Context, spec *sandboxv1.SandboxSpec) (*sandboxv1.Sandbox, error) {
	request := &sandboxv1.CreateSandboxRequest{
		Sandbox:   &sandboxv1.Sandbox{Spec: spec},
		RequestId: uuid.NewString(),
	}
	for attempt := 1; ; attempt++ {
		response, err := s.API.CreateSandbox(ctx, request)
		if err == nil {
			return response, nil
		}
		if attempt == createAttempts || !lost(err) {
			return nil, err
		}
		if err := s.Wait(ctx, 250*time.Millisecond<<attempt); err != nil {
			return nil, err
		}
	}
}

// lost says whether the call may have been carried out although it failed:
// nothing of the server's own said why.
func lost(err error) bool {
	if apierr.Info(err) != nil {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeInternal, connect.CodeUnknown:
		return true
	default:
		return false
	}
}

// Running waits until the sandbox can be used, and answers with an EndedError
// when it never will. seen, which may be nil, is shown each look.
func (s Sandboxes) Running(ctx context.Context, sandbox *sandboxv1.Sandbox, seen func(*sandboxv1.SandboxStatus)) (*sandboxv1.Sandbox, error) {
	sandbox, err := s.until(ctx, sandbox, seen, func(state sandboxv1.State) bool {
		return state == sandboxv1.State_STATE_RUNNING || state == sandboxv1.State_STATE_PAUSED ||
			state == sandboxv1.State_STATE_TERMINATING || Ended(state)
	})
	if err != nil {
		return nil, err
	}
	switch sandbox.GetStatus().GetState() {
	case sandboxv1.State_STATE_RUNNING, sandboxv1.State_STATE_PAUSED:
		return sandbox, nil
	default:
		return nil, &EndedError{Sandbox: sandbox}
	}
}

// Gone waits until the sandbox has ended and answers with how it did.
func (s Sandboxes) Gone(ctx context.Context, sandbox *sandboxv1.Sandbox) (*sandboxv1.Sandbox, error) {
	return s.until(ctx, sandbox, nil, Ended)
}

// Ended says whether a state is the last one of a sandbox.
func Ended(state sandboxv1.State) bool {
	switch state {
	case sandboxv1.State_STATE_COMPLETED, sandboxv1.State_STATE_FAILED, sandboxv1.State_STATE_TERMINATED:
		return true
	default:
		return false
	}
}

func (s Sandboxes) until(ctx context.Context, sandbox *sandboxv1.Sandbox, seen func(*sandboxv1.SandboxStatus), done func(sandboxv1.State) bool) (*sandboxv1.Sandbox, error) {
	for pause := firstPause; ; pause = min(pause*3/2, longestPause) {
		if seen != nil {
			seen(sandbox.GetStatus())
		}
		if done(sandbox.GetStatus().GetState()) {
			return sandbox, nil
		}
		if err := s.Wait(ctx, pause); err != nil {
			return nil, err
		}
		response, err := s.API.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: sandbox.GetSandboxId()})
		if err != nil {
			return nil, err
		}
		sandbox = response
	}
}

// Remove ends a sandbox and waits until it has ended. A sandbox that is not
// there is fine.
func (s Sandboxes) Remove(ctx context.Context, id string, graceSeconds int32) error {
	response, err := s.API.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{
		SandboxId: id, GracePeriodSeconds: graceSeconds, AllowMissing: true,
	})
	if err != nil {
		return err
	}
	if response.GetSandbox() == nil {
		return nil
	}
	_, err = s.Gone(ctx, response.GetSandbox())
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	return err
}
