package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// What a Store answers with, wrapped; test with errors.Is.
var (
	ErrClusterNotFound    = errors.New("cluster not found")
	ErrClusterExists      = errors.New("cluster name already taken")
	ErrRunnerNotFound     = errors.New("runner not found")
	ErrRunnerExists       = errors.New("runner id already taken")
	ErrRevisionNotFound   = errors.New("revision not found")
	ErrCredentialNotFound = errors.New("credential not found")
	// ErrRequestIDReused: the request id was used for another input.
	ErrRequestIDReused = errors.New("request id already used for another request")
)

// ClusterTakenError is a Store's answer when the cluster has a runner.
type ClusterTakenError struct {
	// RunnerID is the runner that is there.
	RunnerID string
}

// Error implements error.
func (e *ClusterTakenError) Error() string {
	return fmt.Sprintf("cluster already has runner %q", e.RunnerID)
}

// Cluster is a place where a runner can be installed.
type Cluster struct {
	OrganizationID string
	ClusterID      string
	Name           string
	// Zone is in lower case.
	Zone       string
	Kind       adminv1.ClusterKind
	CreateTime time.Time
	// RunnerID is the runner on it; empty when there is none. Read only.
	RunnerID string
}

// RunnerRecord is a managed runner as the store keeps it.
type RunnerRecord struct {
	gateway.RunnerKey
	// UID tells two runners apart that had the same id one after the other.
	UID           string
	ClusterID     string
	Zone          string
	RunnerGroupID string
	DisplayName   string
	Spec          *sandboxv1.ManagedRunnerSpec
	// Policy is nil when it was never configured.
	Policy *sandboxv1.Policy
	ETag   string
	Phase  Phase
	// PhaseTime is when Phase began; RolloutTime is when TargetRevision was
	// set.
	PhaseTime   time.Time
	RolloutTime time.Time
	// LatestRevision is the highest that was ever made.
	LatestRevision int32
	TargetRevision int32
	// ActiveRevision is 0 when none serves.
	ActiveRevision int32
	// InstallError is set only in PhaseFailed.
	InstallError *sandboxv1.InstallError
	CreateTime   time.Time
	UpdateTime   time.Time
	// LastHeartbeatTime lags behind what the registry knows; zero when there
	// was none.
	LastHeartbeatTime time.Time

	// Reading is what a store reads with the rest, and does not write with it.
	Reading
}

// clone shares nothing with the record that is ever edited.
func (r *RunnerRecord) clone() *RunnerRecord {
	out := *r
	out.Spec, out.Policy = proto.CloneOf(r.Spec), proto.CloneOf(r.Policy)
	return &out
}

// declared is what callers declare of the runner, in messages of its own.
func (r *RunnerRecord) declared() *sandboxv1.ManagedRunner {
	return &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{
			RunnerId: r.RunnerID, RunnerGroupId: r.RunnerGroupID, Zone: r.Zone, ClusterId: r.ClusterID,
		},
		DisplayName: r.DisplayName,
		Spec:        proto.CloneOf(r.Spec),
		Policy:      proto.CloneOf(r.Policy),
	}
}

// Reading is what is kept elsewhere of a runner, as of the instant that its
// record was read.
type Reading struct {
	ClusterName string
	// Target is the revision TargetRevision.
	Target Revision
	// ActiveVersion is the version of the revision ActiveRevision; empty when
	// none serves.
	ActiveVersion string
}

// Revision is one resolved deployment of a runner. It is never edited.
type Revision struct {
	Number     int32
	Version    string
	Deployment *sandboxv1.DeploymentSpec
	CreateTime time.Time
	// Author is the user whose change made it.
	Author string
}

// NewRunner is everything that one accepted creation writes.
type NewRunner struct {
	Runner   *RunnerRecord
	Revision Revision
	Audit    audit.Entry
	// RequestID is empty when the caller gave none. RequestDigest tells inputs
	// apart; Answer is what a retry gets.
	RequestID     string
	RequestDigest []byte
	Answer        []byte
	// RequestExpireTime is when the request id may be used again.
	RequestExpireTime time.Time
}

// RunnerQuery selects runners; empty conditions mean any.
type RunnerQuery struct {
	OrganizationID string
	ClusterID      string
	Zone           string
	RunnerGroupID  string
	// AfterRunnerID is the last row of the page before.
	AfterRunnerID string
	Limit         int
}

// Write is what a change adds beside the record itself.
type Write struct {
	// Revision is added when not nil.
	Revision *Revision
	// Audit is added when not nil.
	Audit *audit.Entry
}

// CredentialKind tells what a credential is for.
type CredentialKind string

// The kinds.
const (
	// CredentialEnrollment is traded for a session credential.
	CredentialEnrollment CredentialKind = "enrollment"
	// CredentialSession is what a runner shows at every call.
	CredentialSession CredentialKind = "session"
)

// Credential is what is kept of a runner's secret: its SHA-256.
type Credential struct {
	gateway.RunnerIdentity
	Kind       CredentialKind
	Hash       [32]byte
	CreateTime time.Time
}

// Store keeps clusters, runners and what belongs to them. An accepted write
// survives a crash at any instant; each method is one transaction.
type Store interface {
	// InsertCluster answers ErrClusterExists when the name is taken.
	InsertCluster(ctx context.Context, cluster Cluster, audit audit.Entry) error
	// Cluster finds one by UUID or name, or answers ErrClusterNotFound.
	Cluster(ctx context.Context, organizationID, cluster string) (Cluster, error)
	// Clusters lists the organization's, by name.
	Clusters(ctx context.Context, organizationID string) ([]Cluster, error)
	// DeleteCluster answers ErrClusterNotFound, or a ClusterTakenError while a
	// runner is on it.
	DeleteCluster(ctx context.Context, organizationID, clusterID string, audit audit.Entry) error

	// InsertRunner adds a runner with its first revision. When the request id
	// was used for the same input, it adds nothing and returns the first
	// answer. It answers ErrRequestIDReused, ErrRunnerExists,
	// ErrClusterNotFound or a ClusterTakenError, in that order.
	InsertRunner(ctx context.Context, runner NewRunner) (firstAnswer []byte, err error)
	// Runner answers ErrRunnerNotFound when there is none.
	Runner(ctx context.Context, key gateway.RunnerKey) (*RunnerRecord, error)
	// Runners lists by runner id.
	Runners(ctx context.Context, query RunnerQuery) ([]*RunnerRecord, error)
	// RunnerKeys lists the runners of every organization.
	RunnerKeys(ctx context.Context) ([]gateway.RunnerKey, error)
	// ChangeRunner reads a runner, lets change edit it, and writes it with
	// what change adds. When change answers nil or an error nothing is
	// written; the error is passed on. Identity and creation are never changed.
	ChangeRunner(ctx context.Context, key gateway.RunnerKey, change func(*RunnerRecord) (*Write, error)) (*RunnerRecord, error)
	// DeleteRunner forgets a runner, its revisions and its credentials. A
	// runner with another UID is left alone, and an unknown one succeeds.
	DeleteRunner(ctx context.Context, key gateway.RunnerKey, uid string, audit audit.Entry) error
	// Revision answers ErrRevisionNotFound when there is none.
	Revision(ctx context.Context, key gateway.RunnerKey, number int32) (Revision, error)

	// PutCredential replaces the credential of that kind of that revision. It
	// answers ErrRunnerNotFound when the runner is gone.
	PutCredential(ctx context.Context, credential Credential) error
	// Credential finds one by hash, or answers ErrCredentialNotFound.
	Credential(ctx context.Context, kind CredentialKind, hash [32]byte) (Credential, error)
	// DeleteCredentials forgets those of one revision.
	DeleteCredentials(ctx context.Context, key gateway.RunnerKey, revision int32) error

	// DeleteExpiredRequests forgets request ids that expired before then.
	DeleteExpiredRequests(ctx context.Context, before time.Time) error
}
