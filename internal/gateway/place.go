package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway/placement"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// placed is where a sandbox goes and what it gets there.
type placed struct {
	runner   Runner
	resolved policy.Resolved
	// runtime is the class that the runner gives by itself.
	runtime string
}

// place chooses a runner and reserves room on it for the record.
func (g *Gateway) place(ctx context.Context, record *Record) (placed, error) {
	s, err := g.selection(ctx, record.OrganizationID, record.Spec)
	if err != nil {
		return placed{}, err
	}
	for {
		choice, err := s.choose()
		if err != nil {
			return placed{}, err
		}
		chosen := s.byID[choice.RunnerID]
		if g.registry.runner(chosen.RunnerKey).reserve(record.SandboxID, choice.Demand.Amount) {
			return placed{runner: chosen, resolved: s.resolved[choice.RunnerID], runtime: choice.Runtime}, nil
		}
		// Somebody was faster; look again at what is left.
	}
}

// selection is the choice of a runner for one spec.
type selection struct {
	gateway *Gateway
	spec    *sandboxv1.SandboxSpec
	runners []Runner
	byID    map[string]Runner
	// resolved is what the spec means on the runners whose policy allows it.
	resolved map[string]policy.Resolved
}

func (g *Gateway) selection(ctx context.Context, organizationID string, spec *sandboxv1.SandboxSpec) (*selection, error) {
	runners, err := g.runners.Runners(ctx, organizationID)
	if err != nil {
		return nil, fmt.Errorf("list the organization's runners: %w", err)
	}
	s := &selection{gateway: g, spec: spec, runners: runners, byID: make(map[string]Runner, len(runners)), resolved: map[string]policy.Resolved{}}
	for _, r := range runners {
		s.byID[r.RunnerID] = r
	}
	return s, nil
}

func (s *selection) choose() (placement.Choice, error) {
	req := placement.Request{
		AnyRunner: s.spec.GetMode() == sandboxv1.SandboxMode_SANDBOX_MODE_CKS,
		RunnerIDs: s.spec.GetRunnerIds(),
	}
	return placement.Choose(req, s.gateway.candidates(s.runners), s.resolve)
}

func (s *selection) resolve(c placement.Candidate) (placement.Demand, error) {
	result, err := s.gateway.resolve(s.spec, s.byID[c.RunnerID])
	if err != nil {
		return placement.Demand{}, err
	}
	s.resolved[c.RunnerID] = result
	demand := placement.Demand{Amount: amountOf(result.Requests), HostNames: result.NamesHosts(), IPv6: result.IPv6()}
	if result.RuntimeClass != policy.NodeDefault {
		demand.Runtime = result.RuntimeClass
	}
	return demand, nil
}

// policyViolations is what the runners' policies have against a spec that is
// refused anyway; nil when that cannot be known.
func (g *Gateway) policyViolations(ctx context.Context, organizationID string, spec *sandboxv1.SandboxSpec) violations {
	s, err := g.selection(ctx, organizationID, spec)
	if err == nil {
		_, err = s.choose()
	}
	var refusal *apierr.Error
	if !errors.As(err, &refusal) {
		return nil
	}
	return refusal.Violations()
}

func (g *Gateway) candidates(runners []Runner) []placement.Candidate {
	out := make([]placement.Candidate, len(runners))
	for i, r := range runners {
		out[i] = placement.Candidate{
			RunnerID:  r.RunnerID,
			Shared:    r.Shared,
			Deleting:  r.Deleting,
			HasPolicy: r.Policy.Policy != nil,
		}
		if home := g.registry.known(r.RunnerKey); home != nil {
			if s := home.session(); s != nil {
				out[i].Connected = true
				out[i].Runtime = s.description.GetRuntime()
			}
			out[i].Capacity, out[i].Reserved, _ = home.room()
			out[i].StorageShortage = home.shortage()
		}
	}
	return out
}

func amountOf(a policy.Amount) placement.Amount {
	return placement.Amount{CPUMillis: a.CPUMillis, MemoryBytes: a.MemoryBytes, GPUCount: a.GPUCount}
}

// initialStatus says at once what the sandbox will get (trap 45), in the words
// it was asked for (trap 44).
func initialStatus(spec *sandboxv1.SandboxSpec, place placed, now time.Time) *sandboxv1.SandboxStatus {
	status := place.resolved.Status(spec, place.runtime)
	status.CreateTime = timestamppb.New(now)
	status.RunnerId = place.runner.RunnerID
	status.RunnerGroupId = place.runner.RunnerGroupID
	return status
}
