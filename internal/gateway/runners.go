package gateway

import (
	"context"
	"errors"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

// ErrUnknownCredential says that no runner has that enrolment token or
// credential, or that its revision is no longer wanted.
var ErrUnknownCredential = errors.New("unknown runner credential")

// RunnerKey names a runner.
type RunnerKey struct {
	OrganizationID string
	RunnerID       string
}

// RunnerIdentity is a runner process that has shown its credential.
type RunnerIdentity struct {
	RunnerKey
	// Revision is the deployment that the process belongs to.
	Revision int32
}

// PolicySnapshot is the policy of a runner at one moment.
type PolicySnapshot struct {
	// Policy is nil when the runner has none; it then takes no sandbox.
	Policy *sandboxv1.Policy
	ETag   string
	// EnforceResourceLimits: sandboxes must declare limits.
	EnforceResourceLimits bool
	ImagePullPolicy       sandboxv1.SandboxImagePullPolicy
}

// Runner is what placement needs to know of a declared runner.
type Runner struct {
	RunnerKey
	RunnerGroupID string
	Zone          string
	// Shared runners also serve sandboxes that name no mode of their own.
	Shared bool
	// Deleting runners take no new sandboxes.
	Deleting bool
	Policy   PolicySnapshot
}

// Runners is what the gateway needs to know of declared runners. The control
// plane implements it.
type Runners interface {
	// Runners lists the organization's runners.
	Runners(ctx context.Context, organizationID string) ([]Runner, error)
	// Runner answers with one; ok is false when there is none of that name.
	Runner(ctx context.Context, key RunnerKey) (runner Runner, ok bool, err error)

	// Enroll trades an enrolment token for a new credential, or answers
	// ErrUnknownCredential.
	Enroll(ctx context.Context, enrollmentToken, version string) (RunnerIdentity, string, error)
	// Authenticate says whose credential that is, or answers
	// ErrUnknownCredential.
	Authenticate(ctx context.Context, credential string) (RunnerIdentity, error)

	// Connected is told when a runner process has connected and described
	// itself; it answers with the policy to push.
	Connected(ctx context.Context, runner RunnerIdentity, description *runnerv1.DescribeResponse) (PolicySnapshot, error)
	// Disconnected is told when its connection has ended.
	Disconnected(ctx context.Context, runner RunnerIdentity)
	// Heartbeat is told of each sign of life.
	Heartbeat(ctx context.Context, runner RunnerIdentity, at time.Time)
}
