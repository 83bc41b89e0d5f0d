// Package install puts a runner on a cluster, watches it and takes it away.
// Each kind of cluster is a package of its own (local, kubernetes).
//
// It must not know what sandboxes are.
package install

import (
	"context"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Target is one revision of a runner, as it should be.
type Target struct {
	OrganizationID string
	RunnerID       string
	ClusterID      string
	Revision       int32
	// Version of the runner's binary.
	Version    string
	Deployment *sandboxv1.DeploymentSpec
	// EnrollmentToken is secret; it is given to the runner in a file that only
	// it can read.
	EnrollmentToken string
}

// Phase is how far a revision has come, as the cluster sees it.
type Phase int

// The phases.
const (
	// PhaseAbsent: nothing of the revision is there.
	PhaseAbsent Phase = iota
	// PhaseStarting: it is on its way.
	PhaseStarting
	// PhaseRunning: its processes run. Whether they work shows when they
	// connect.
	PhaseRunning
	// PhaseFailed: it will not run without a change; see Error.
	PhaseFailed
)

// Observation is what the cluster says of a revision.
type Observation struct {
	Phase Phase
	// Error is set with PhaseFailed, and may be set while restarts go on.
	Error *sandboxv1.InstallError
}

// Installer works on one kind of cluster. Every method is idempotent, and can
// be called by a new process that knows nothing of what an earlier one did.
type Installer interface {
	// Ensure makes the revision be there and keeps it running; it returns when
	// that is under way.
	Ensure(ctx context.Context, target Target) error
	// Observe says how the revision stands.
	Observe(ctx context.Context, organizationID, runnerID string, revision int32) (Observation, error)
	// Revisions lists the revisions of which anything is left.
	Revisions(ctx context.Context, organizationID, runnerID string) ([]int32, error)
	// Retire takes one revision away and leaves sandboxes as they are.
	Retire(ctx context.Context, organizationID, runnerID string, revision int32) error
	// Uninstall takes every revision away, and all that the runner put on the
	// cluster. Sandboxes must be gone before.
	Uninstall(ctx context.Context, organizationID, runnerID string) error
}

// Tidier is an Installer whose runners leave something on the machine that is
// better not left there while they are stopped.
type Tidier interface {
	// Tidy takes away what a runner without sandboxes and without revisions put
	// on the cluster, but for its images. Ensure puts it back.
	Tidy(ctx context.Context, organizationID, runnerID string) error
}
