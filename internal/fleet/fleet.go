package fleet

import (
	"context"
	"log/slog"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/install"
)

// Gateway is what the fleet needs of the gateway.
type Gateway interface {
	// PushPolicy hands a policy to a runner. A runner that is not connected
	// gets it when it connects.
	PushPolicy(ctx context.Context, key gateway.RunnerKey, policy gateway.PolicySnapshot) error
	// DrainRunner ends every sandbox of a runner: SIGTERM, then SIGKILL after
	// grace. It returns when none is left.
	DrainRunner(ctx context.Context, key gateway.RunnerKey, grace time.Duration) error
}

// Release is a version of the runner, with what it is deployed with by default.
type Release struct {
	Version    string
	Deployment *sandboxv1.DeploymentSpec
}

// Config is what a Fleet needs.
type Config struct {
	Store Store
	// Installers by kind of cluster. A cluster of a kind that is not here
	// cannot be registered.
	Installers map[adminv1.ClusterKind]install.Installer
	// Release is the newest version on every channel.
	Release Release
	// DefaultPolicy is stored for a runner that connects without one; nil: it
	// then takes no sandbox until somebody sets one.
	DefaultPolicy *sandboxv1.Policy
	// EnrollmentKey (32 random bytes) is what enrolment tokens are derived
	// from, so that a restarted server hands out the same.
	EnrollmentKey []byte
	Now           func() time.Time
	// NewID makes unique identifiers (UUIDs).
	NewID  func() string
	Logger *slog.Logger
}
