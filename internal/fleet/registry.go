package fleet

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// HeartbeatTimeout is how long a runner counts as connected after its last
// sign of life; it sends one every ten seconds.
const HeartbeatTimeout = 30 * time.Second

// allRunners is more than one organization can have: a runner needs a cluster.
const allRunners = 1 << 20

var _ gateway.Runners = (*Registry)(nil)

// Registry is the gateway's view of declared runners, and what is known of
// their connections.
//
// It keeps the runners of an organization in memory, because the gateway asks
// for each request. Every write of a runner goes through invalidate, so that
// what was answered to a writer holds for the next request.
type Registry struct {
	cfg  Config
	wake func(gateway.RunnerKey)

	mu sync.Mutex
	// declared holds the runners of each organization that was asked for.
	declared map[string]map[string]gateway.Runner
	// epoch counts invalidations: what was read before one must not be kept
	// after it.
	epoch    uint64
	sessions map[gateway.RunnerKey]map[int32]session
}

// session is what is known of one revision's connection.
type session struct {
	connected     bool
	lastHeartbeat time.Time
	// notApplicable are the overrides that mean nothing to it.
	notApplicable []string
}

func newRegistry(cfg Config) *Registry {
	return &Registry{
		cfg:      cfg,
		declared: map[string]map[string]gateway.Runner{},
		sessions: map[gateway.RunnerKey]map[int32]session{},
	}
}

// Runners implements gateway.Runners.
func (r *Registry) Runners(ctx context.Context, organizationID string) ([]gateway.Runner, error) {
	declared, err := r.organization(ctx, organizationID)
	if err != nil {
		return nil, err
	}
	runners := make([]gateway.Runner, 0, len(declared))
	for _, runner := range declared {
		runners = append(runners, runner)
	}
	return runners, nil
}

// Runner implements gateway.Runners.
func (r *Registry) Runner(ctx context.Context, key gateway.RunnerKey) (gateway.Runner, bool, error) {
	declared, err := r.organization(ctx, key.OrganizationID)
	runner, ok := declared[key.RunnerID]
	return runner, ok, err
}

// organization returns the organization's runners; the map is not changed.
func (r *Registry) organization(ctx context.Context, organizationID string) (map[string]gateway.Runner, error) {
	r.mu.Lock()
	declared, ok := r.declared[organizationID]
	epoch := r.epoch
	r.mu.Unlock()
	if ok {
		return declared, nil
	}
	records, err := r.cfg.Store.Runners(ctx, RunnerQuery{OrganizationID: organizationID, Limit: allRunners})
	if err != nil {
		return nil, err
	}
	clusters, err := r.cfg.Store.Clusters(ctx, organizationID)
	if err != nil {
		return nil, err
	}
	kinds := map[string]adminv1.ClusterKind{}
	for _, cluster := range clusters {
		kinds[cluster.ClusterID] = cluster.Kind
	}
	declared = map[string]gateway.Runner{}
	for _, record := range records {
		declared[record.RunnerID] = gateway.Runner{
			RunnerKey:     record.RunnerKey,
			RunnerGroupID: record.RunnerGroupID,
			Zone:          record.Zone,
			Shared:        kinds[record.ClusterID] == adminv1.ClusterKind_CLUSTER_KIND_LOCAL,
			Deleting:      record.Phase.deleting(),
			Policy:        snapshot(record),
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.epoch == epoch {
		r.declared[organizationID] = declared
	}
	return declared, nil
}

// invalidate is called after every write of a runner.
func (r *Registry) invalidate(organizationID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch++
	delete(r.declared, organizationID)
}

// change is the only way that a runner is changed: the write, and then the
// news of it.
func (r *Registry) change(ctx context.Context, key gateway.RunnerKey, change func(*RunnerRecord) (*Write, error)) (*RunnerRecord, error) {
	record, err := r.cfg.Store.ChangeRunner(ctx, key, change)
	r.invalidate(key.OrganizationID)
	return record, err
}

// snapshot is what a runner is told of its policy.
func snapshot(record *RunnerRecord) gateway.PolicySnapshot {
	return gateway.PolicySnapshot{
		Policy:                record.Policy,
		ETag:                  record.ETag,
		EnforceResourceLimits: record.Spec.GetEnforceResourceLimits(),
		ImagePullPolicy:       record.Spec.GetImagePull().GetPolicy(),
	}
}

// Enroll implements gateway.Runners.
func (r *Registry) Enroll(ctx context.Context, enrollmentToken, _ string) (gateway.RunnerIdentity, string, error) {
	identity, err := r.identify(ctx, CredentialEnrollment, enrollmentToken)
	if err != nil {
		return gateway.RunnerIdentity{}, "", err
	}
	secret := newCredential()
	err = r.cfg.Store.PutCredential(ctx, Credential{
		RunnerIdentity: identity,
		Kind:           CredentialSession,
		Hash:           sha256.Sum256([]byte(secret)),
		CreateTime:     r.cfg.Now(),
	})
	if errors.Is(err, ErrRunnerNotFound) {
		return gateway.RunnerIdentity{}, "", gateway.ErrUnknownCredential
	}
	if err != nil {
		return gateway.RunnerIdentity{}, "", fmt.Errorf("store the credential of runner %s: %w", identity.RunnerID, err)
	}
	return identity, secret, nil
}

// Authenticate implements gateway.Runners.
func (r *Registry) Authenticate(ctx context.Context, credential string) (gateway.RunnerIdentity, error) {
	return r.identify(ctx, CredentialSession, credential)
}

// identify finds whose credential it is, and refuses those of revisions that
// are neither active nor the target.
func (r *Registry) identify(ctx context.Context, kind CredentialKind, secret string) (gateway.RunnerIdentity, error) {
	credential, err := r.cfg.Store.Credential(ctx, kind, sha256.Sum256([]byte(secret)))
	if errors.Is(err, ErrCredentialNotFound) {
		return gateway.RunnerIdentity{}, gateway.ErrUnknownCredential
	}
	if err != nil {
		return gateway.RunnerIdentity{}, fmt.Errorf("look up a runner's credential: %w", err)
	}
	record, err := r.cfg.Store.Runner(ctx, credential.RunnerKey)
	if errors.Is(err, ErrRunnerNotFound) {
		return gateway.RunnerIdentity{}, gateway.ErrUnknownCredential
	}
	if err != nil {
		return gateway.RunnerIdentity{}, err
	}
	if !wanted(record, credential.Revision) {
		return gateway.RunnerIdentity{}, gateway.ErrUnknownCredential
	}
	return credential.RunnerIdentity, nil
}

func wanted(record *RunnerRecord, revision int32) bool {
	return revision == record.TargetRevision || revision == record.ActiveRevision
}

// newCredential makes a runner's secret of 256 random bits.
func newCredential() string {
	var random [32]byte
	// crypto/rand never fails.
	_, _ = rand.Read(random[:])
	return "sandbar-runner-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random[:]))
}

// Connected implements gateway.Runners.
func (r *Registry) Connected(ctx context.Context, runner gateway.RunnerIdentity, description *runnerv1.DescribeResponse) (gateway.PolicySnapshot, error) {
	record, err := r.change(ctx, runner.RunnerKey, func(record *RunnerRecord) (*Write, error) {
		if record.Policy != nil || r.cfg.DefaultPolicy == nil || record.Phase.deleting() {
			return nil, nil
		}
		before := declaredDigest(record)
		record.Policy = proto.Clone(r.cfg.DefaultPolicy).(*sandboxv1.Policy)
		record.ETag = r.cfg.NewID()
		return &Write{Audit: &audit.Entry{
			OrganizationID: record.OrganizationID,
			Time:           r.cfg.Now(),
			Action:         "AssignDefaultPolicy",
			Resource:       record.RunnerID,
			Before:         before,
			After:          declaredDigest(record),
		}}, nil
	})
	if errors.Is(err, ErrRunnerNotFound) || err == nil && !wanted(record, runner.Revision) {
		return gateway.PolicySnapshot{}, gateway.ErrUnknownCredential
	}
	if err != nil {
		return gateway.PolicySnapshot{}, err
	}
	r.observe(runner, func(s *session) {
		s.connected, s.lastHeartbeat, s.notApplicable = true, r.cfg.Now(), description.GetNotApplicable()
	})
	r.cfg.Logger.InfoContext(ctx, "runner connected", "org_id", runner.OrganizationID, "runner_id", runner.RunnerID,
		"revision", runner.Revision, "version", description.GetVersion(), "runtime", description.GetRuntime(),
		"not_applicable", description.GetNotApplicable())
	r.wake(runner.RunnerKey)
	return snapshot(record), nil
}

// Disconnected implements gateway.Runners.
func (r *Registry) Disconnected(ctx context.Context, runner gateway.RunnerIdentity) {
	r.observe(runner, func(s *session) { s.connected = false })
	r.cfg.Logger.InfoContext(ctx, "runner disconnected", "org_id", runner.OrganizationID,
		"runner_id", runner.RunnerID, "revision", runner.Revision)
	r.wake(runner.RunnerKey)
}

// Heartbeat implements gateway.Runners. It writes nothing: the reconciler
// stores the time now and then.
func (r *Registry) Heartbeat(_ context.Context, runner gateway.RunnerIdentity, at time.Time) {
	r.observe(runner, func(s *session) {
		if at.After(s.lastHeartbeat) {
			s.lastHeartbeat = at
		}
	})
}

func (r *Registry) observe(runner gateway.RunnerIdentity, change func(*session)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	revisions := r.sessions[runner.RunnerKey]
	if revisions == nil {
		revisions = map[int32]session{}
		r.sessions[runner.RunnerKey] = revisions
	}
	s := revisions[runner.Revision]
	change(&s)
	revisions[runner.Revision] = s
}

// serving says whether that revision is connected and shows signs of life.
func (r *Registry) serving(key gateway.RunnerKey, revision int32) bool {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[key][revision].alive(now)
}

// connected says whether any revision is.
func (r *Registry) connected(key gateway.RunnerKey) bool {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions[key] {
		if s.alive(now) {
			return true
		}
	}
	return false
}

// lastHeartbeat is the latest sign of life of any revision in this process's
// time; zero when there was none.
func (r *Registry) lastHeartbeat(key gateway.RunnerKey) (latest time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions[key] {
		if s.lastHeartbeat.After(latest) {
			latest = s.lastHeartbeat
		}
	}
	return latest
}

// notApplicable is what the newest revision that has connected said.
func (r *Registry) notApplicable(key gateway.RunnerKey) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var newest int32
	for revision := range r.sessions[key] {
		newest = max(newest, revision)
	}
	return r.sessions[key][newest].notApplicable
}

// forget drops what is known of a runner's connections.
func (r *Registry) forget(key gateway.RunnerKey) {
	r.mu.Lock()
	delete(r.sessions, key)
	r.mu.Unlock()
	r.invalidate(key.OrganizationID)
}

func (s session) alive(now time.Time) bool {
	return s.connected && now.Sub(s.lastHeartbeat) < HeartbeatTimeout
}
