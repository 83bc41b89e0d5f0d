package placement

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
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
	noStorage
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
	case noStorage:
		return apierr.New(apierr.StorageFull,
			"no runner has disk space for a sandbox now: %s; delete sandboxes, prune images, or free space on that disk; "+
				"whoever runs the server may keep less free (--disk-reserve)", rs.list()).RetryAfter(retryFull)
	case full:
		return apierr.New(apierr.RunnerCapacityExhausted,
			"no runner has room for the sandbox now: %s; request less, delete sandboxes, or try again later; "+
				"whoever runs the server may promise more (--overcommit-cpu, --overcommit-memory)", rs.list()).RetryAfter(retryFull)
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

// shortage names every resource of which there is too little: what there is,
// what is taken of it, and what the sandbox would need.
func shortage(asked, has, taken Amount) string {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	var short []string
	for _, r := range []struct {
		name              string
		text              func(int64) string
		asked, has, taken int64
	}{
		{"CPU", policy.CPUText, asked.CPUMillis, has.CPUMillis, taken.CPUMillis},
		{"memory", policy.MemoryText, asked.MemoryBytes, has.MemoryBytes, taken.MemoryBytes},
		{"GPU", count, asked.GPUCount, has.GPUCount, taken.GPUCount},
	} {
		if fits(r.asked, r.has-r.taken) {
			continue
		}
		text := fmt.Sprintf("%s: the sandbox requests %s of %s", r.name, r.text(r.asked), r.text(r.has))
		if r.taken > 0 {
			text += fmt.Sprintf(", of which %s are taken", r.text(r.taken))
		}
		short = append(short, text)
	}
	return strings.Join(short, ", ")
}
