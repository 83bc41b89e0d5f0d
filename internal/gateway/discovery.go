package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway/placement"
	"github.com/sandbar-project/sandbar/internal/pagetoken"
)

// ListAvailableRunners implements DiscoveryService: the organization's
// runners that take sandboxes, in the order of their ids.
func (g *Gateway) ListAvailableRunners(ctx context.Context, req *sandboxv1.ListAvailableRunnersRequest) (*sandboxv1.ListAvailableRunnersResponse, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	var v violations
	size := v.pageSize(req.GetPageSize())
	list := pagetoken.List{
		"ListAvailableRunners", caller.OrganizationID, req.GetRunnerGroupId(), req.GetGpuType(), req.GetArchitecture(),
		req.GetHealthyOnly(), req.GetServiceVisibility(),
	}
	after := v.pageToken(list, req.GetPageToken())
	if err := v.err(); err != nil {
		return nil, err
	}
	runners, err := g.runners.Runners(ctx, caller.OrganizationID)
	if err != nil {
		return nil, fmt.Errorf("list the organization's runners: %w", err)
	}
	slices.SortFunc(runners, func(a, b Runner) int { return cmp.Compare(a.RunnerID, b.RunnerID) })
	out := &sandboxv1.ListAvailableRunnersResponse{}
	for _, r := range runners {
		if r.RunnerID <= string(after) || r.Deleting {
			continue
		}
		available := g.available(r, req.GetView() == sandboxv1.RunnerView_RUNNER_VIEW_FULL)
		if !matches(req, available) {
			continue
		}
		if len(out.Runners) == size {
			out.NextPageToken = list.Token([]byte(out.Runners[size-1].GetRunnerId()))
			break
		}
		out.Runners = append(out.Runners, available)
	}
	return out, nil
}

// matches applies the filters; each excludes what it does not name (trap 49).
func matches(req *sandboxv1.ListAvailableRunnersRequest, r *sandboxv1.AvailableRunner) bool {
	capabilities := r.GetCapabilities()
	return (req.GetRunnerGroupId() == "" || req.GetRunnerGroupId() == r.GetRunnerGroupId()) &&
		(req.GetGpuType() == "" || slices.Contains(capabilities.GetSupportedGpuTypes(), req.GetGpuType())) &&
		(req.GetArchitecture() == "" || slices.Contains(capabilities.GetSupportedArchitectures(), req.GetArchitecture())) &&
		(!req.GetHealthyOnly() || r.GetHealthy()) &&
		(req.GetServiceVisibility() == sandboxv1.Visibility_VISIBILITY_UNSPECIFIED ||
			slices.Contains(capabilities.GetSupportedServiceVisibilities(), req.GetServiceVisibility()))
}

// GetAvailableRunner implements DiscoveryService. Another organization's
// runner answers as one that does not exist.
func (g *Gateway) GetAvailableRunner(ctx context.Context, req *sandboxv1.GetAvailableRunnerRequest) (*sandboxv1.AvailableRunner, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	var v violations
	v.required("organization_id", req.GetOrganizationId())
	v.required("runner_id", req.GetRunnerId())
	if err := v.err(); err != nil {
		return nil, err
	}
	missing := apierr.New(apierr.RunnerNotFound, "organization %q has no runner %q", req.GetOrganizationId(), req.GetRunnerId()).
		With("runner_id", req.GetRunnerId())
	if req.GetOrganizationId() != caller.OrganizationID {
		return nil, missing
	}
	r, ok, err := g.runners.Runner(ctx, RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: req.GetRunnerId()})
	if err != nil {
		return nil, fmt.Errorf("look up runner %s: %w", req.GetRunnerId(), err)
	}
	if !ok {
		return nil, missing
	}
	return g.available(r, req.GetView() != sandboxv1.RunnerView_RUNNER_VIEW_BASIC), nil
}

// available is a runner as it is now. What only a connected runner can say is
// absent when it is not connected. It names no service visibilities, because
// none can be served.
func (g *Gateway) available(r Runner, full bool) *sandboxv1.AvailableRunner {
	out := &sandboxv1.AvailableRunner{
		RunnerId:       r.RunnerID,
		RunnerGroupId:  r.RunnerGroupID,
		OrganizationId: r.OrganizationID,
		IsShared:       r.Shared,
		Capabilities:   &sandboxv1.RunnerCapabilitySummary{},
	}
	home := g.registry.known(r.RunnerKey)
	if home == nil {
		return out
	}
	s := home.session()
	if s == nil {
		return out
	}
	capacity, reserved, sandboxes := home.room()
	out.Healthy = !r.Deleting && r.Policy.Policy != nil
	out.ConnectedAt = timestamppb.New(s.connectedAt)
	out.Capabilities = &sandboxv1.RunnerCapabilitySummary{
		MaxCpuMillicores: capacity.CPUMillis,
		MaxMemoryBytes:   capacity.MemoryBytes,
		MaxGpuCount:      capacity.GPUCount,
	}
	if arch := s.description.GetArchitecture(); arch != "" {
		out.Capabilities.SupportedArchitectures = []string{arch}
	}
	if full {
		out.Resources = summary(capacity.Sub(reserved), sandboxes)
	}
	return out
}

func summary(free placement.Amount, sandboxes int) *sandboxv1.RunnerResourceSummary {
	return &sandboxv1.RunnerResourceSummary{
		AvailableCpuMillicores: max(free.CPUMillis, 0),
		AvailableMemoryBytes:   max(free.MemoryBytes, 0),
		AvailableGpuCount:      max(free.GPUCount, 0),
		RunningSandboxes:       int32(sandboxes),
	}
}

// ListImages implements ImageService.
func (g *Gateway) ListImages(ctx context.Context, req *adminv1.ListImagesRequest) (*adminv1.ListImagesResponse, error) {
	s, err := g.sessionOf(ctx, req.GetRunnerId())
	if err != nil {
		return nil, err
	}
	resp, err := s.client.ListImages(ctx, req)
	return resp, relayed(ctx, s, err)
}

// PruneImages implements ImageService.
func (g *Gateway) PruneImages(ctx context.Context, req *adminv1.PruneImagesRequest) (*adminv1.PruneImagesResponse, error) {
	s, err := g.sessionOf(ctx, req.GetRunnerId())
	if err != nil {
		return nil, err
	}
	resp, err := s.client.PruneImages(ctx, req)
	return resp, relayed(ctx, s, err)
}

// sessionOf is the session of one of the caller's runners.
func (g *Gateway) sessionOf(ctx context.Context, runnerID string) (*session, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	key := RunnerKey{OrganizationID: caller.OrganizationID, RunnerID: runnerID}
	_, ok, err := g.runners.Runner(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("look up runner %s: %w", runnerID, err)
	}
	if !ok {
		return nil, apierr.New(apierr.RunnerNotFound, "no runner %q", runnerID).With("runner_id", runnerID)
	}
	home := g.registry.known(key)
	if home == nil {
		return nil, runnerUnavailable(runnerID)
	}
	s := home.session()
	if s == nil {
		return nil, runnerUnavailable(runnerID)
	}
	return s, nil
}
