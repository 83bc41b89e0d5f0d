package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/maintenance"
	"github.com/sandbar-project/sandbar/internal/managedrunner"
	"github.com/sandbar-project/sandbar/internal/pagetoken"
	"github.com/sandbar-project/sandbar/internal/policy"
)

const (
	defaultPageSize = 50
	// requestIDLifetime is how long a request id is remembered.
	requestIDLifetime = 24 * time.Hour
)

var _ sandboxv1connect.RunnerManagementServiceHandler = (*Management)(nil)

// Management serves RunnerManagementService.
type Management struct {
	cfg      Config
	registry *Registry
	wake     func(gateway.RunnerKey)
}

// CreateManagedRunner implements RunnerManagementService.
func (m *Management) CreateManagedRunner(ctx context.Context, req *sandboxv1.CreateManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.validateCreate(req); err != nil {
		return nil, err
	}
	digest, err := digestOf(req)
	if err != nil {
		return nil, err
	}
	planned, err := m.plan(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	record, now := planned.record, planned.revision.CreateTime
	answer := m.describe(record)
	encoded, err := proto.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	first, err := m.cfg.Store.InsertRunner(ctx, NewRunner{
		Runner:            record,
		Revision:          planned.revision,
		Audit:             m.entry(caller, "CreateManagedRunner", nil, record, nil),
		RequestID:         req.GetRequestId(),
		RequestDigest:     digest,
		Answer:            encoded,
		RequestExpireTime: now.Add(requestIDLifetime),
	})
	if err != nil {
		return nil, m.explain(err, record)
	}
	if first != nil {
		answer = &sandboxv1.ManagedRunner{}
		return answer, proto.Unmarshal(first, answer)
	}
	m.changed(record.RunnerKey)
	return answer, nil
}

// creation is a runner that is to be created, with its first revision.
type creation struct {
	record   *RunnerRecord
	revision Revision
}

// plan fills in the defaults of a valid request, and checks it against the
// cluster. A cluster that is not registered is left to the store to refuse.
func (m *Management) plan(ctx context.Context, caller auth.Principal, req *sandboxv1.CreateManagedRunnerRequest) (creation, error) {
	now := m.cfg.Now()
	record := m.newRecord(caller.OrganizationID, req.GetManagedRunner(), now)
	revision := Revision{
		Number:     1,
		Version:    m.cfg.Release.Version,
		Deployment: resolveDeployment(m.cfg.Release, record.Spec.GetOverrides()),
		CreateTime: now,
		Author:     caller.UserID,
	}
	cluster, err := m.cfg.Store.Cluster(ctx, record.OrganizationID, record.ClusterID)
	if err != nil && !errors.Is(err, ErrClusterNotFound) {
		return creation{}, err
	}
	if err == nil {
		if err := m.checkCluster(cluster, record); err != nil {
			return creation{}, err
		}
	}
	record.Reading = Reading{ClusterName: cluster.Name, Target: revision}
	return creation{record: record, revision: revision}, nil
}

// checkCluster checks the runner against the cluster that it is to be on, which
// is in one zone.
func (m *Management) checkCluster(cluster Cluster, record *RunnerRecord) error {
	var f apierr.Violations
	if m.cfg.Installers[cluster.Kind] == nil {
		f.Add("identity.cluster_id", "CLUSTER_KIND", "this server cannot install runners on that kind of cluster")
	}
	if record.Zone != cluster.Zone {
		f.Add("identity.zone", "ZONE_MISMATCH", "is %q, but cluster %s (%q) is registered in zone %q; a runner is in the zone of its cluster, so use that", record.Zone, cluster.ClusterID, cluster.Name, cluster.Zone)
	}
	return f.Err()
}

// newRecord fills in the defaults.
func (m *Management) newRecord(organizationID string, runner *sandboxv1.ManagedRunner, now time.Time) *RunnerRecord {
	runner = proto.CloneOf(runner)
	managedrunner.FillDefaults(runner)
	identity := runner.GetIdentity()
	return &RunnerRecord{
		RunnerKey:      gateway.RunnerKey{OrganizationID: organizationID, RunnerID: identity.GetRunnerId()},
		UID:            m.cfg.NewID(),
		ClusterID:      strings.ToLower(identity.GetClusterId()),
		Zone:           strings.ToLower(identity.GetZone()),
		RunnerGroupID:  identity.GetRunnerGroupId(),
		DisplayName:    runner.GetDisplayName(),
		Spec:           runner.GetSpec(),
		Policy:         policy.Normalize(runner.GetPolicy()),
		ETag:           m.cfg.NewID(),
		Phase:          PhasePending,
		PhaseTime:      now,
		RolloutTime:    now,
		LatestRevision: 1,
		TargetRevision: 1,
		CreateTime:     now,
		UpdateTime:     now,
	}
}

// GetManagedRunner implements RunnerManagementService.
func (m *Management) GetManagedRunner(ctx context.Context, req *sandboxv1.GetManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	key := gateway.RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: req.GetRunnerId()}
	record, err := m.cfg.Store.Runner(ctx, key)
	if err != nil {
		return nil, m.explain(err, &RunnerRecord{RunnerKey: key})
	}
	return m.describe(record), nil
}

// ListManagedRunners implements RunnerManagementService.
func (m *Management) ListManagedRunners(ctx context.Context, req *sandboxv1.ListManagedRunnersRequest) (*sandboxv1.ListManagedRunnersResponse, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	query := RunnerQuery{
		OrganizationID: caller.OrganizationID,
		ClusterID:      strings.ToLower(req.GetClusterId()),
		Zone:           strings.ToLower(req.GetZone()),
		RunnerGroupID:  req.GetRunnerGroupId(),
		Limit:          pagetoken.Size(req.GetPageSize(), defaultPageSize),
	}
	list := pagetoken.List{"ListManagedRunners", caller.OrganizationID, req.GetClusterId(), req.GetZone(), req.GetRunnerGroupId()}
	if token := req.GetPageToken(); token != "" {
		after, ok := list.Key(token)
		if !ok {
			return nil, apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{pagetoken.Violation()})
		}
		query.AfterRunnerID = string(after)
	}
	if query.ClusterID != "" {
		cluster, err := m.cfg.Store.Cluster(ctx, caller.OrganizationID, req.GetClusterId())
		switch {
		case err == nil:
			query.ClusterID = cluster.ClusterID
		case !errors.Is(err, ErrClusterNotFound):
			return nil, err
		}
	}
	page := query.Limit
	query.Limit++ // One more tells whether there is another page.
	records, err := m.cfg.Store.Runners(ctx, query)
	if err != nil {
		return nil, err
	}
	response := &sandboxv1.ListManagedRunnersResponse{}
	if len(records) > page {
		records = records[:page]
		response.NextPageToken = list.Token([]byte(records[page-1].RunnerID))
	}
	for _, record := range records {
		response.ManagedRunners = append(response.ManagedRunners, m.describe(record))
	}
	return response, nil
}

// UpdateManagedRunner implements RunnerManagementService.
func (m *Management) UpdateManagedRunner(ctx context.Context, req *sandboxv1.UpdateManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	paths, err := m.validateUpdate(req)
	if err != nil {
		return nil, err
	}
	key := gateway.RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: req.GetRunnerId()}
	record, err := m.registry.change(ctx, key, func(record *RunnerRecord) (*Write, error) {
		write, _, err := m.update(caller, record, req.GetManagedRunner(), paths)
		return write, err
	})
	if err != nil {
		return nil, m.explain(err, &RunnerRecord{RunnerKey: key})
	}
	m.wake(key)
	return m.describe(record), nil
}

// update edits the record, and answers the paths of what is changed. It runs
// inside of the transaction.
func (m *Management) update(caller auth.Principal, record *RunnerRecord, body *sandboxv1.ManagedRunner, paths []string) (*Write, []string, error) {
	if record.Phase.deleting() {
		return nil, nil, apierr.New(apierr.RunnerDeleting, "runner %q is being deleted and cannot be changed; wait until it is gone and create another", record.RunnerID)
	}
	if etag := body.GetEtag(); etag != "" && etag != record.ETag {
		return nil, nil, apierr.New(apierr.ETagMismatch, "the managed_runner etag is stale: the policy of runner %q has changed since it was read; reload it, look at what changed and try again", record.RunnerID).
			With("runner_id", record.RunnerID)
	}
	before := record.clone()
	declared := before.declared()
	managedrunner.Apply(declared, body, paths)
	managedrunner.FillDefaults(declared)
	declared.Policy = policy.Normalize(declared.GetPolicy())
	changed := managedrunner.Changes(before.declared(), declared)
	if len(changed) == 0 {
		return nil, nil, nil
	}
	record.DisplayName, record.RunnerGroupID = declared.GetDisplayName(), declared.GetIdentity().GetRunnerGroupId()
	record.Spec, record.Policy = declared.GetSpec(), declared.GetPolicy()
	if slices.Contains(changed, managedrunner.PathPolicy) {
		record.ETag = m.cfg.NewID()
	}
	now := m.cfg.Now()
	record.UpdateTime = now
	entry := m.entry(caller, "UpdateManagedRunner", before, record, map[string]any{"update_mask": paths})
	write := &Write{Audit: &entry}
	write.Revision = m.revise(record, before.Spec, caller.UserID, now)
	return write, changed, nil
}

// revise makes the next revision when the deployment has changed.
func (m *Management) revise(record *RunnerRecord, before *sandboxv1.ManagedRunnerSpec, author string, now time.Time) *Revision {
	deployment := resolveDeployment(m.cfg.Release, record.Spec.GetOverrides())
	if proto.Equal(deployment, resolveDeployment(m.cfg.Release, before.GetOverrides())) {
		return nil
	}
	// An edit keeps the version: updates have a method and windows of their own.
	deployment.Image = record.Target.Deployment.GetImage()
	return retarget(record, Revision{Version: record.Target.Version, Deployment: deployment, CreateTime: now, Author: author}, now)
}

// retarget numbers the revision and makes it the target.
func retarget(record *RunnerRecord, revision Revision, now time.Time) *Revision {
	record.LatestRevision++
	revision.Number = record.LatestRevision
	record.TargetRevision = revision.Number
	record.RolloutTime = now
	if row, ok := next(record.Phase, eventEdited); ok {
		apply(record, row, nil, now)
	}
	return &revision
}

// DeleteManagedRunner implements RunnerManagementService.
func (m *Management) DeleteManagedRunner(ctx context.Context, req *sandboxv1.DeleteManagedRunnerRequest) (*emptypb.Empty, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	key := gateway.RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: req.GetRunnerId()}
	_, err = m.registry.change(ctx, key, func(record *RunnerRecord) (*Write, error) {
		if record.Phase.deleting() {
			return nil, nil
		}
		now := m.cfg.Now()
		row, _ := next(record.Phase, eventDeleteRequested)
		apply(record, row, nil, now)
		record.UpdateTime = now
		entry := m.entry(caller, "DeleteManagedRunner", record, nil, nil)
		return &Write{Audit: &entry}, nil
	})
	if errors.Is(err, ErrRunnerNotFound) && req.GetAllowMissing() {
		return &emptypb.Empty{}, nil
	}
	if err != nil {
		return nil, m.explain(err, &RunnerRecord{RunnerKey: key})
	}
	m.wake(key)
	return &emptypb.Empty{}, nil
}

// ApplyAvailableUpdate implements RunnerManagementService.
func (m *Management) ApplyAvailableUpdate(ctx context.Context, req *sandboxv1.ApplyAvailableUpdateRequest) (*sandboxv1.ManagedRunner, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	key := gateway.RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: req.GetRunnerId()}
	record, err := m.registry.change(ctx, key, func(record *RunnerRecord) (*Write, error) {
		return m.applyUpdate(caller, record)
	})
	if err != nil {
		return nil, m.explain(err, &RunnerRecord{RunnerKey: key})
	}
	m.wake(key)
	return m.describe(record), nil
}

func (m *Management) applyUpdate(caller auth.Principal, record *RunnerRecord) (*Write, error) {
	if record.Phase.deleting() {
		return nil, apierr.New(apierr.RunnerDeleting, "runner %q is being deleted and cannot be updated", record.RunnerID)
	}
	if record.Target.Version == m.cfg.Release.Version {
		return nil, nil
	}
	now := m.cfg.Now()
	if exclusion := maintenance.Excluded(record.Spec.GetMaintenancePolicy(), now); exclusion != nil {
		return nil, apierr.New(apierr.UpdateExcluded, "no update of runner %q may start before %s (exclusion %q); wait, or remove the exclusion from spec.maintenance_policy",
			record.RunnerID, exclusion.GetEndTime().AsTime().Format(time.RFC3339), exclusion.GetReason())
	}
	entry := m.entry(caller, "ApplyAvailableUpdate", record, record, map[string]any{"version": m.cfg.Release.Version})
	record.UpdateTime = now
	return &Write{Audit: &entry, Revision: retarget(record, Revision{
		Version:    m.cfg.Release.Version,
		Deployment: resolveDeployment(m.cfg.Release, record.Spec.GetOverrides()),
		CreateTime: now,
		Author:     caller.UserID,
	}, now)}, nil
}

// changed tells everybody who must know of a new runner.
func (m *Management) changed(key gateway.RunnerKey) {
	m.registry.invalidate(key.OrganizationID)
	m.wake(key)
}

// explain turns what a store answers into what a caller can use.
func (m *Management) explain(err error, record *RunnerRecord) error {
	var taken *ClusterTakenError
	switch {
	case errors.As(err, &taken):
		return apierr.New(apierr.ClusterTaken, "cluster %s already has runner %q, and a cluster holds one; import that runner, or delete it first", record.ClusterID, taken.RunnerID).
			With("runner_id", taken.RunnerID).With("cluster_id", record.ClusterID).Because(err)
	case errors.Is(err, ErrRunnerExists):
		return apierr.New(apierr.RunnerExists, "runner %q exists already; import it, or choose another runner_id", record.RunnerID).
			With("runner_id", record.RunnerID).Because(err)
	case errors.Is(err, ErrClusterNotFound):
		return apierr.New(apierr.ClusterNotFound, "no cluster %s is registered in this organization; sandbar cluster list shows those that are, sandbar cluster add registers one", record.ClusterID).
			With("cluster_id", record.ClusterID).Because(err)
	case errors.Is(err, ErrRequestIDReused):
		return apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{{
			Field: "request_id", Reason: "REQUEST_ID_REUSED", Description: "was used in the last 24 hours for another request; use a new one for another configuration",
		}})
	case errors.Is(err, ErrRunnerNotFound):
		return apierr.New(apierr.RunnerNotFound, "there is no runner %q in this organization; sandbar runner get shows those that are", record.RunnerID).
			With("runner_id", record.RunnerID).Because(err)
	}
	return err
}

// entry tells of a change of a runner; before and after are nil where it was
// not there.
func (m *Management) entry(caller auth.Principal, action string, before, after *RunnerRecord, detail map[string]any) audit.Entry {
	known := after
	if known == nil {
		known = before
	}
	entry := caller.Entry(m.cfg.Now(), action, known.RunnerID)
	entry.Before, entry.After = declaredDigest(before), declaredDigest(after)
	if len(detail) > 0 {
		// Strings and lists of them always encode.
		text, _ := json.Marshal(detail)
		entry.Detail = string(text)
	}
	return entry
}

// declaredDigest is the digest of what callers declare of a runner.
func declaredDigest(record *RunnerRecord) []byte {
	if record == nil {
		return nil
	}
	return audit.Digest(record.declared())
}

func callerOf(ctx context.Context) (auth.Principal, error) {
	caller, ok := auth.PrincipalFrom(ctx)
	if !ok {
		return auth.Principal{}, apierr.New(apierr.Unauthenticated, "the request carries no token")
	}
	return caller, nil
}

// digestOf tells inputs apart that come with the same request id.
func digestOf(req *sandboxv1.CreateManagedRunnerRequest) ([]byte, error) {
	input := proto.Clone(req).(*sandboxv1.CreateManagedRunnerRequest)
	input.RequestId = ""
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	digest := sha256.Sum256(data)
	return digest[:], nil
}
