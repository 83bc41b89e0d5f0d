package placement_test

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway/placement"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runner is a candidate that takes everything, changed by edit.
func runner(id string, edit func(*placement.Candidate)) placement.Candidate {
	c := placement.Candidate{
		RunnerID: id, Shared: true, Connected: true, HasPolicy: true,
		Capacity: placement.Amount{CPUMillis: 4000, MemoryBytes: 8 << 30},
	}
	if edit != nil {
		edit(&c)
	}
	return c
}

func asks(demand placement.Demand) placement.Resolve {
	return func(placement.Candidate) (placement.Demand, error) { return demand, nil }
}

var small = placement.Demand{Amount: placement.Amount{CPUMillis: 500, MemoryBytes: 512 << 20}}

func TestRulesThatKeepASandboxOffARunner(t *testing.T) {
	violation := apierr.Invalid(apierr.PolicyViolation, []apierr.Violation{{Field: "spec.x", Description: "too much"}})
	for _, test := range []struct {
		name    string
		req     placement.Request
		edit    func(*placement.Candidate)
		resolve placement.Resolve
		reason  apierr.Reason
		says    string
	}{
		{
			name: "a runner that is not shared takes no serverless sandbox",
			edit: func(c *placement.Candidate) { c.Shared = false }, reason: apierr.NoSuitableRunner, says: "SANDBOX_MODE_CKS",
		},
		{
			name: "a runner that is being deleted takes none",
			edit: func(c *placement.Candidate) { c.Deleting = true }, reason: apierr.NoSuitableRunner, says: "being deleted",
		},
		{
			name: "a runner that is not connected takes none, for now",
			edit: func(c *placement.Candidate) { c.Connected = false }, reason: apierr.RunnerUnavailable, says: "not connected",
		},
		{
			name: "a runner without a policy takes none, for now",
			edit: func(c *placement.Candidate) { c.HasPolicy = false }, reason: apierr.RunnerUnavailable, says: "no policy",
		},
		{
			name:    "a policy that refuses is passed on with its violations",
			resolve: func(placement.Candidate) (placement.Demand, error) { return placement.Demand{}, violation },
			reason:  apierr.PolicyViolation, says: "spec.x: too much",
		},
		{
			name:    "egress by name needs a runner that can enforce it (trap 48)",
			resolve: asks(placement.Demand{HostNames: true}), reason: apierr.NoSuitableRunner, says: "dns_name",
		},
		{
			name:    "egress to a network of IPv6 needs a runner that has IPv6",
			resolve: asks(placement.Demand{IPv6: "spec.network.egress[1].cidr"}), reason: apierr.NoSuitableRunner, says: "no IPv6 (spec.network.egress[1].cidr)",
		},
		{
			name:    "a runtime class needs a runner that has it",
			resolve: asks(placement.Demand{Runtime: "gvisor"}), reason: apierr.NoSuitableRunner, says: "gvisor",
		},
		{
			name:    "a sandbox larger than the runner never fits",
			resolve: asks(placement.Demand{Amount: placement.Amount{CPUMillis: 4001, GPUCount: 1}}),
			reason:  apierr.NoSuitableRunner, says: "CPU: the sandbox requests 4001m of 4, GPU: the sandbox requests 1 of 0",
		},
		{
			name:   "a runner whose disk is nearly full takes none, for now",
			edit:   func(c *placement.Candidate) { c.StorageShortage = "its disk has 1Gi of 100Gi free" },
			reason: apierr.StorageFull, says: "its disk has 1Gi of 100Gi free",
		},
		{
			name:   "a full runner has no room for now",
			edit:   func(c *placement.Candidate) { c.Reserved = placement.Amount{CPUMillis: 3600} },
			reason: apierr.RunnerCapacityExhausted, says: "CPU: the sandbox requests 500m of 4, of which 3600m are taken; request less, delete sandboxes",
		},
		{
			name:   "every resource that is short is named",
			edit:   func(c *placement.Candidate) { c.Reserved = placement.Amount{CPUMillis: 4000, MemoryBytes: 8 << 30} },
			reason: apierr.RunnerCapacityExhausted, says: "CPU: the sandbox requests 500m of 4, of which 4 are taken, memory: the sandbox requests 512Mi of 8Gi, of which 8Gi are taken",
		},
		{
			name: "a pinned runner that is unknown is something to try again",
			req:  placement.Request{AnyRunner: true, RunnerIDs: []string{"b"}}, reason: apierr.RunnerUnavailable, says: "it has a",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			resolve := test.resolve
			if resolve == nil {
				resolve = asks(small)
			}
			_, err := placement.Choose(test.req, []placement.Candidate{runner("a", test.edit)}, resolve)
			if apierr.ReasonOf(err) != test.reason || !strings.Contains(err.Error(), test.says) {
				t.Errorf("err = %s: %v, want %s saying %q", apierr.ReasonOf(err), err, test.reason, test.says)
			}
		})
	}
}

func TestNoRunnerAtAll(t *testing.T) {
	_, err := placement.Choose(placement.Request{}, nil, asks(small))
	if apierr.ReasonOf(err) != apierr.NoSuitableRunner {
		t.Errorf("err = %v", err)
	}
}

func TestTheRunnerWithTheMostRoomIsChosen(t *testing.T) {
	candidates := []placement.Candidate{
		runner("busy", func(c *placement.Candidate) { c.Reserved.CPUMillis = 3000 }),
		runner("scarce", func(c *placement.Candidate) { c.Reserved.MemoryBytes = 7 << 30 }),
		runner("free", func(c *placement.Candidate) { c.Reserved.CPUMillis = 1000 }),
	}
	choice, err := placement.Choose(placement.Request{}, candidates, asks(small))
	if err != nil || choice.RunnerID != "free" {
		t.Errorf("chose %q, %v", choice.RunnerID, err)
	}
}

func TestEqualRunnersAreTakenInTheOrderOfTheirIDs(t *testing.T) {
	choice, err := placement.Choose(placement.Request{}, []placement.Candidate{runner("b", nil), runner("a", nil)}, asks(small))
	if err != nil || choice.RunnerID != "a" {
		t.Errorf("chose %q, %v", choice.RunnerID, err)
	}
}

func TestPinningReachesARunnerThatIsNotShared(t *testing.T) {
	req := placement.Request{AnyRunner: true, RunnerIDs: []string{"own"}}
	candidates := []placement.Candidate{runner("shared", nil), runner("own", func(c *placement.Candidate) { c.Shared = false })}
	choice, err := placement.Choose(req, candidates, asks(small))
	if err != nil || choice.RunnerID != "own" {
		t.Errorf("chose %q, %v", choice.RunnerID, err)
	}
}

func TestViolationsOfSeveralPoliciesSayWhoseTheyAre(t *testing.T) {
	resolve := func(c placement.Candidate) (placement.Demand, error) {
		return placement.Demand{}, apierr.Invalid(apierr.PolicyViolation, []apierr.Violation{{Field: "spec.x", Description: "no"}})
	}
	_, err := placement.Choose(placement.Request{}, []placement.Candidate{runner("a", nil), runner("b", nil)}, resolve)
	var e *apierr.Error
	if !errors.As(err, &e) || len(e.Violations()) != 2 || e.Violations()[1].Description != "runner b: no" {
		t.Errorf("err = %v", err)
	}
}

func TestAChoiceAlwaysFitsAndNoneMeansNoneFits(t *testing.T) {
	amount := func(t *rapid.T, name string) placement.Amount {
		return placement.Amount{
			CPUMillis:   rapid.Int64Range(0, 8).Draw(t, name+" cpu"),
			MemoryBytes: rapid.Int64Range(0, 8).Draw(t, name+" memory"),
			GPUCount:    rapid.Int64Range(0, 2).Draw(t, name+" gpus"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		candidates := make([]placement.Candidate, rapid.IntRange(0, 6).Draw(t, "candidates"))
		for i := range candidates {
			candidates[i] = placement.Candidate{
				RunnerID:  string(rune('a' + i)),
				Shared:    rapid.Bool().Draw(t, "shared"),
				Connected: rapid.Bool().Draw(t, "connected"),
				Deleting:  rapid.Bool().Draw(t, "deleting"),
				HasPolicy: rapid.Bool().Draw(t, "has policy"),
				Capacity:  amount(t, "capacity"),
				Reserved:  amount(t, "reserved"),
			}
		}
		demand := placement.Demand{Amount: amount(t, "demand")}
		req := placement.Request{AnyRunner: rapid.Bool().Draw(t, "any")}
		takes := func(c placement.Candidate) bool {
			return (req.AnyRunner || c.Shared) && c.Connected && !c.Deleting && c.HasPolicy &&
				demand.Within(c.Capacity) && demand.Within(c.Capacity.Sub(c.Reserved))
		}
		choice, err := placement.Choose(req, candidates, asks(demand))
		for _, c := range candidates {
			if err != nil && takes(c) {
				t.Fatalf("refused (%v), though %+v takes it", err, c)
			}
			if err == nil && c.RunnerID == choice.RunnerID && !takes(c) {
				t.Fatalf("chose %+v, which does not take it", c)
			}
		}
		if err != nil && apierr.ReasonOf(err) == "" {
			t.Fatalf("an error without a reason: %v", err)
		}
	})
}
