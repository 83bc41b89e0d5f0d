package fleet

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

var _ adminv1connect.RunnerServiceHandler = (*Validation)(nil)

// PolicyPlanner says what another policy would mean for live sandboxes.
type PolicyPlanner interface {
	PlanPolicy(ctx context.Context, key gateway.RunnerKey, present, planned gateway.PolicySnapshot) (*adminv1.PolicyPlan, error)
}

// Validation serves RunnerService: the writes of Management, tried out.
type Validation struct {
	management *Management
	planner    PolicyPlanner
}

// NewValidation makes the dry run of a Management's writes.
func NewValidation(management *Management, planner PolicyPlanner) *Validation {
	return &Validation{management: management, planner: planner}
}

// ValidateManagedRunner implements RunnerService.
func (v *Validation) ValidateManagedRunner(ctx context.Context, req *adminv1.ValidateManagedRunnerRequest) (*adminv1.ValidateManagedRunnerResponse, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetRunnerId() == "" {
		return v.creation(ctx, caller, req)
	}
	return v.update(ctx, caller, req)
}

func (v *Validation) creation(ctx context.Context, caller auth.Principal, req *adminv1.ValidateManagedRunnerRequest) (*adminv1.ValidateManagedRunnerResponse, error) {
	m := v.management
	if len(req.GetUpdateMask().GetPaths()) > 0 {
		return nil, apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{apierr.Violated("update_mask", "UPDATE_MASK",
			"must be empty to try out a creation; to try out an update, name the runner in runner_id")})
	}
	creation := &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: req.GetManagedRunner()}
	if err := m.validateCreate(creation); err != nil {
		return nil, err
	}
	planned, err := m.plan(ctx, caller, creation)
	if err != nil {
		return nil, err
	}
	if err := v.free(ctx, planned.record); err != nil {
		return nil, m.explain(err, planned.record)
	}
	return &adminv1.ValidateManagedRunnerResponse{ManagedRunner: unwritten(m.describe(planned.record)), NewRevision: true}, nil
}

// free answers the error with which a store would refuse the new runner.
func (v *Validation) free(ctx context.Context, record *RunnerRecord) error {
	store := v.management.cfg.Store
	switch _, err := store.Runner(ctx, record.RunnerKey); {
	case err == nil:
		return ErrRunnerExists
	case !errors.Is(err, ErrRunnerNotFound):
		return err
	}
	cluster, err := store.Cluster(ctx, record.OrganizationID, record.ClusterID)
	if err == nil && cluster.RunnerID != "" {
		return &ClusterTakenError{RunnerID: cluster.RunnerID}
	}
	return err
}

func (v *Validation) update(ctx context.Context, caller auth.Principal, req *adminv1.ValidateManagedRunnerRequest) (*adminv1.ValidateManagedRunnerResponse, error) {
	m := v.management
	paths, err := m.validateUpdate(&sandboxv1.UpdateManagedRunnerRequest{
		RunnerId: req.GetRunnerId(), ManagedRunner: req.GetManagedRunner(), UpdateMask: req.GetUpdateMask(),
	})
	if err != nil {
		return nil, err
	}
	key := gateway.RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: req.GetRunnerId()}
	present, err := m.cfg.Store.Runner(ctx, key)
	if err != nil {
		return nil, m.explain(err, &RunnerRecord{RunnerKey: key})
	}
	planned := present.clone()
	write, changed, err := m.update(caller, planned, req.GetManagedRunner(), paths)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ValidateManagedRunnerResponse{ChangedPaths: changed}
	if write != nil && write.Revision != nil {
		response.NewRevision, planned.Target = true, *write.Revision
	}
	before, after := snapshot(present), snapshot(planned)
	if !proto.Equal(before.Policy, after.Policy) || before.EnforceResourceLimits != after.EnforceResourceLimits {
		if response.PolicyPlan, err = v.planner.PlanPolicy(ctx, key, before, after); err != nil {
			return nil, err
		}
	}
	response.ManagedRunner = m.describe(planned)
	if planned.ETag != present.ETag {
		unwritten(response.ManagedRunner)
	}
	return response, nil
}

// unwritten takes the etag off, since only a write gives one.
func unwritten(runner *sandboxv1.ManagedRunner) *sandboxv1.ManagedRunner {
	runner.Etag = ""
	return runner
}
