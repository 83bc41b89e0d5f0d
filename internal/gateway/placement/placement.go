// Package placement chooses the runner that takes a sandbox.
//
// Choose is pure: it sees candidates as they are at one moment and either
// names one of them or says, runner by runner, why it could not. Whoever calls
// it reserves the room and asks again when somebody else was faster.
//
// It must not import the gateway, and does no I/O.
package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Amount is what a sandbox asks for, or what a runner has.
type Amount struct {
	CPUMillis   int64
	MemoryBytes int64
	GPUCount    int64
}

// Add is a + b.
func (a Amount) Add(b Amount) Amount {
	return Amount{a.CPUMillis + b.CPUMillis, a.MemoryBytes + b.MemoryBytes, a.GPUCount + b.GPUCount}
}

// Sub is a - b.
func (a Amount) Sub(b Amount) Amount {
	return Amount{a.CPUMillis - b.CPUMillis, a.MemoryBytes - b.MemoryBytes, a.GPUCount - b.GPUCount}
}

// Within says whether a fits into b. What is not asked for always fits.
func (a Amount) Within(b Amount) bool {
	return fits(a.CPUMillis, b.CPUMillis) && fits(a.MemoryBytes, b.MemoryBytes) && fits(a.GPUCount, b.GPUCount)
}

func fits(asked, free int64) bool { return asked <= 0 || asked <= free }

// Candidate is a runner as it is now.
type Candidate struct {
	RunnerID string
	// Shared runners take sandboxes that ask for no mode or for serverless.
	Shared bool
	// Connected: a process of it serves.
	Connected bool
	Deleting  bool
	HasPolicy bool
	// EnforcesHostNames: it can hold a sandbox to egress by name.
	EnforcesHostNames bool
	// HasIPv6: its sandboxes can be granted networks of IPv6.
	HasIPv6 bool
	// Runtime is the runtime class that its sandboxes have.
	Runtime string
	// Capacity is all that sandboxes may be promised together, Reserved what
	// they have been.
	Capacity Amount
	Reserved Amount
	// StorageShortage is why it begins nothing for want of disk space; empty
	// when there is room.
	StorageShortage string
}

// Demand is what a sandbox needs of one runner. It differs between runners,
// because their policies fill in different defaults.
type Demand struct {
	Amount
	// HostNames: it is granted egress by name.
	HostNames bool
	// IPv6 is the field that grants it a network of IPv6; empty: none does.
	IPv6 string
	// Runtime is the runtime class that it must have; empty: any.
	Runtime string
}

// Request is what a sandbox says about where it wants to be.
type Request struct {
	// AnyRunner: the sandbox asked for the organization's own runners (CKS);
	// otherwise only shared runners take it.
	AnyRunner bool
	// RunnerIDs: when not empty, only these.
	RunnerIDs []string
}

// Resolve says what the sandbox needs on a candidate, or why the candidate's
// policy refuses it.
type Resolve func(Candidate) (Demand, error)

// Choice is where the sandbox goes.
type Choice struct {
	RunnerID string
	Demand   Demand
	// Runtime is the runtime class that the runner's sandboxes have.
	Runtime string
}

// Choose filters the candidates and answers with the one that has the most
// room: the largest free share of its scarcest resource; equals in the order
// of their ids. Policies are resolved in that order, and only until one
// candidate takes the sandbox. The error comes from apierr and names what
// stands in the way at every runner that was looked at.
func Choose(req Request, candidates []Candidate, resolve Resolve) (Choice, error) {
	var refused refusals
	fit := make([]Candidate, 0, len(candidates))
	for _, c := range candidates {
		if len(req.RunnerIDs) > 0 && !slices.Contains(req.RunnerIDs, c.RunnerID) {
			continue
		}
		if refusal, ok := filter(req, c); !ok {
			refused = append(refused, refusal)
			continue
		}
		fit = append(fit, c)
	}
	slices.SortFunc(fit, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.room(), a.room()), cmp.Compare(a.RunnerID, b.RunnerID))
	})
	for _, c := range fit {
		demand, err := resolve(c)
		if err != nil {
			refused = append(refused, refusal{runnerID: c.RunnerID, because: notAllowed, cause: err, text: err.Error()})
			continue
		}
		if refusal, ok := take(c, demand); !ok {
			refused = append(refused, refusal)
			continue
		}
		return Choice{RunnerID: c.RunnerID, Demand: demand, Runtime: c.Runtime}, nil
	}
	return Choice{}, refused.explain(req, candidates)
}

// room is the free share of the scarcest resource.
func (c Candidate) room() float64 {
	room := share(c.Capacity.CPUMillis, c.Reserved.CPUMillis)
	return min(room, share(c.Capacity.MemoryBytes, c.Reserved.MemoryBytes))
}

func share(capacity, reserved int64) float64 {
	if capacity <= 0 {
		return 0
	}
	return float64(capacity-reserved) / float64(capacity)
}

// filter looks at what does not depend on the policy.
func filter(req Request, c Candidate) (refusal, bool) {
	no := func(because obstacle, text string) (refusal, bool) {
		return refusal{runnerID: c.RunnerID, because: because, text: text}, false
	}
	switch {
	case !req.AnyRunner && !c.Shared:
		return no(wrongMode, "it takes only sandboxes of mode SANDBOX_MODE_CKS")
	case c.Deleting:
		return no(leaving, "it is being deleted")
	case !c.Connected:
		return no(unreachable, "it is not connected")
	case !c.HasPolicy:
		return no(noPolicy, "it has no policy yet")
	}
	return refusal{}, true
}

// take looks at what the resolved sandbox needs.
func take(c Candidate, demand Demand) (refusal, bool) {
	switch {
	case demand.HostNames && !c.EnforcesHostNames:
		return refusal{
			runnerID: c.RunnerID, because: incapable,
			text: "it cannot enforce egress by name (network.egress.dns_name)",
		}, false
	case demand.IPv6 != "" && !c.HasIPv6:
		return refusal{
			runnerID: c.RunnerID, because: incapable,
			text: fmt.Sprintf("its sandboxes have no IPv6 (%s); leave the rule out", demand.IPv6),
		}, false
	case demand.Runtime != "" && demand.Runtime != c.Runtime:
		return refusal{
			runnerID: c.RunnerID, because: incapable,
			text: fmt.Sprintf("its sandboxes have the runtime class %q, and this one needs %q", c.Runtime, demand.Runtime),
		}, false
	case !demand.Within(c.Capacity):
		return refusal{runnerID: c.RunnerID, because: tooSmall, text: shortage(demand.Amount, c.Capacity, Amount{})}, false
	case !demand.Within(c.Capacity.Sub(c.Reserved)):
		return refusal{runnerID: c.RunnerID, because: full, text: shortage(demand.Amount, c.Capacity, c.Reserved)}, false
	case c.StorageShortage != "":
		return refusal{runnerID: c.RunnerID, because: noStorage, text: c.StorageShortage}, false
	}
	return refusal{}, true
}
