package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"buf.build/go/protovalidate"
	"golang.org/x/sync/errgroup"

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
	// GatewayServer is the base URL that runners dial.
	GatewayServer string
	// DefaultPolicy is stored for a runner that connects without one; nil: it
	// then takes no sandbox until somebody sets one.
	DefaultPolicy *sandboxv1.Policy
	// EnrollmentKey (32 random bytes) is what enrolment tokens are derived
	// from, so that a restarted server hands out the same.
	EnrollmentKey []byte
	// Rules are those that the proto files carry.
	Rules protovalidate.Validator
	Now   func() time.Time
	// NewID makes unique identifiers (UUIDs).
	NewID  func() string
	Logger *slog.Logger
}

// Fleet is the control plane: its two services, what the gateway asks of it,
// and the reconciler.
type Fleet struct {
	// Management serves RunnerManagementService.
	Management *Management
	// Clusters serves ClusterService.
	Clusters *Clusters
	// Registry is the gateway's view of declared runners.
	Registry *Registry

	cfg        Config
	reconciler *reconciler
}

// New makes a fleet; Run makes what runs follow it.
func New(cfg Config) *Fleet {
	registry := newRegistry(cfg)
	reconciler := newReconciler(cfg, registry)
	registry.wake = reconciler.wake
	return &Fleet{
		Management: &Management{cfg: cfg, registry: registry, wake: reconciler.wake},
		Clusters:   &Clusters{cfg: cfg},
		Registry:   registry,
		cfg:        cfg,
		reconciler: reconciler,
	}
}

// Run reconciles every runner until ctx ends, and returns when nothing of it
// is under way any more.
func (f *Fleet) Run(ctx context.Context, gw Gateway) error {
	return f.reconciler.run(ctx, gw)
}

// StopInstalled ends the processes of the runners on clusters of that kind,
// and with endSandboxes their sandboxes before. The runners stay declared: the
// next Run starts them again. It must not be called while Run works.
func (f *Fleet) StopInstalled(ctx context.Context, gw Gateway, kind adminv1.ClusterKind, endSandboxes bool) error {
	keys, err := f.cfg.Store.RunnerKeys(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, key := range keys {
		group.Go(func() error { return f.stop(ctx, gw, key, kind, endSandboxes) })
	}
	return group.Wait()
}

func (f *Fleet) stop(ctx context.Context, gw Gateway, key gateway.RunnerKey, kind adminv1.ClusterKind, endSandboxes bool) error {
	record, err := f.cfg.Store.Runner(ctx, key)
	if err != nil {
		return err
	}
	cluster, err := f.cfg.Store.Cluster(ctx, key.OrganizationID, record.ClusterID)
	if err != nil || cluster.Kind != kind {
		return err
	}
	installer := f.cfg.Installers[kind]
	drained := endSandboxes
	if endSandboxes {
		if err := f.drainForStop(ctx, gw, key); err != nil {
			drained = false
			f.cfg.Logger.WarnContext(ctx, "sandboxes are left for the next start to end", "org_id", key.OrganizationID, "runner_id", key.RunnerID, "error", err)
		}
	}
	revisions, err := installer.Revisions(ctx, key.OrganizationID, key.RunnerID)
	if err != nil {
		return fmt.Errorf("list the revisions of runner %s: %w", key.RunnerID, err)
	}
	var failures []error
	for _, revision := range revisions {
		if err := installer.Retire(ctx, key.OrganizationID, key.RunnerID, revision); err != nil {
			failures = append(failures, fmt.Errorf("stop revision %d of runner %s: %w", revision, key.RunnerID, err))
		}
	}
	if tidier, ok := installer.(install.Tidier); ok && drained && len(failures) == 0 {
		if err := tidier.Tidy(ctx, key.OrganizationID, key.RunnerID); err != nil {
			failures = append(failures, fmt.Errorf("tidy up after runner %s: %w", key.RunnerID, err))
		}
	}
	return errors.Join(failures...)
}

// stopDrainTimeout bounds the end of a runner's sandboxes at a stop. A runner
// that has just been started has this long to connect and hear of it.
const stopDrainTimeout = drainGrace + 30*time.Second

func (f *Fleet) drainForStop(ctx context.Context, gw Gateway, key gateway.RunnerKey) error {
	ctx, cancel := context.WithTimeout(ctx, stopDrainTimeout)
	defer cancel()
	return gw.DrainRunner(ctx, key, drainGrace)
}
