package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// retryFull is when to try again after every runner was full.
const retryFull = time.Second

// obstacle is why a runner did not take a sandbox, in the order of how close
// it came: the closest one gives the error its reason.
type obstacle int

const (
	wrongMode obstacle = iota
	leaving
	noPolicy
	unreachable
	notAllowed
	incapable
	tooSmall
	full
)

type refusal struct {
	runnerID string
	because  obstacle
	text     string
	// cause is the policy's error, with notAllowed.
	cause error
}

type refusals []refusal

// explain makes one error of all the refusals.
func (rs refusals) explain(req Request, candidates []Candidate) error {
	if len(rs) == 0 {
		return nobody(req, candidates)
	}
	closest := slices.MaxFunc(rs, func(a, b refusal) int { return int(a.because - b.because) }).because
	switch closest {
	case full:
		return apierr.New(apierr.RunnerCapacityExhausted,
			"no runner has room for the sandbox now: %s; try again later or ask for less", rs.list()).RetryAfter(retryFull)
	case notAllowed:
		return rs.policyError()
	case incapable, tooSmall:
		return apierr.New(apierr.NoSuitableRunner, "no runner can take the sandbox: %s", rs.list())
	case unreachable, noPolicy:
		return apierr.New(apierr.RunnerUnavailable, "no runner can take the sandbox now: %s; try again later", rs.list())
	case leaving:
		return apierr.New(apierr.NoSuitableRunner, "no runner can take the sandbox: %s", rs.list())
	default:
		return apierr.New(apierr.NoSuitableRunner,
			"no runner takes sandboxes of this mode: %s; set spec.mode to SANDBOX_MODE_CKS to use the organization's own runners", rs.list())
	}
}

func nobody(req Request, candidates []Candidate) error {
	if len(req.RunnerIDs) == 0 {
		return apierr.New(apierr.NoSuitableRunner,
			"the organization has no runner; create one and wait until it is connected")
	}
	known := make([]string, 0, len(candidates))
	for _, c := range candidates {
		known = append(known, c.RunnerID)
	}
	slices.Sort(known)
	have := "it has none"
	if len(known) > 0 {
		have = "it has " + strings.Join(known, ", ")
	}
	// The contract makes an unknown pinned runner something to try again.
	return apierr.New(apierr.RunnerUnavailable,
		"the organization has no runner of the ids in spec.runner_ids (%s); %s", strings.Join(req.RunnerIDs, ", "), have)
}

// policyError keeps the violations. With several runners each says whose
// policy it is.
func (rs refusals) policyError() error {
	var byPolicy refusals
	for _, r := range rs {
		if r.because == notAllowed {
			byPolicy = append(byPolicy, r)
		}
	}
	if len(byPolicy) == 1 {
		return byPolicy[0].cause
	}
	var violations []apierr.Violation
	for _, r := range byPolicy {
		var e *apierr.Error
		if !errors.As(r.cause, &e) || len(e.Violations()) == 0 {
			return r.cause
		}
		for _, v := range e.Violations() {
			v.Description = "runner " + r.runnerID + ": " + v.Description
			violations = append(violations, v)
		}
	}
	return apierr.Invalid(apierr.ReasonOf(byPolicy[0].cause), violations)
}

func (rs refusals) list() string {
	lines := make([]string, len(rs))
	for i, r := range rs {
		lines[i] = "runner " + r.runnerID + ": " + r.text
	}
	return strings.Join(lines, "; ")
}

// shortage names every resource of which there is too little.
func shortage(verb string, asked, has Amount) string {
	var short []string
	for _, r := range []struct {
		name, unit string
		asked, has int64
	}{
		{"CPU", "m", asked.CPUMillis, has.CPUMillis},
		{"memory", " bytes", asked.MemoryBytes, has.MemoryBytes},
		{"GPUs", "", asked.GPUCount, has.GPUCount},
	} {
		if !fits(r.asked, r.has) {
			short = append(short, fmt.Sprintf("it %s %d%s of %s, the sandbox asks for %d%s",
				verb, max(r.has, 0), r.unit, r.name, r.asked, r.unit))
		}
	}
	return strings.Join(short, ", ")
}
