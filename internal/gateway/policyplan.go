package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// PlanPolicy holds every live sandbox of the runner against a policy that it
// may get in the place of the present one. It changes nothing.
func (g *Gateway) PlanPolicy(ctx context.Context, key RunnerKey, present, planned PolicySnapshot) (*adminv1.PolicyPlan, error) {
	records, err := g.store.LiveSandboxes(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of runner %s: %w", key.RunnerID, err)
	}
	slices.SortFunc(records, func(a, b *Record) int {
		return cmp.Or(a.CreateTime.Compare(b.CreateTime), cmp.Compare(a.SandboxID, b.SandboxID))
	})
	refusedNow, refusedThen, err := rulings(present, planned)
	if err != nil {
		return nil, err
	}
	plan := &adminv1.PolicyPlan{CheckedSandboxes: int32(len(records))}
	for _, record := range records {
		refusal, err := refusedThen.of(record)
		if err != nil {
			return nil, err
		}
		if refusal == nil {
			continue
		}
		already, err := refusedNow.of(record)
		if err != nil {
			return nil, err
		}
		plan.RefusedSandboxes = append(plan.RefusedSandboxes, &adminv1.RefusedSandbox{
			SandboxId:      record.SandboxID,
			UserId:         record.UserID,
			State:          record.Status.GetState(),
			Tags:           record.Spec.GetTags(),
			Violations:     refusal,
			RefusedAlready: already != nil,
		})
	}
	return plan, nil
}

// ruling is a policy made ready to be asked about many sandboxes.
type ruling struct{ request policy.Request }

func rulings(present, planned PolicySnapshot) (now, then ruling, err error) {
	if now, err = newRuling(present); err != nil {
		return now, then, err
	}
	then, err = newRuling(planned)
	return now, then, err
}

func newRuling(snapshot PolicySnapshot) (ruling, error) {
	r := ruling{policy.Request{EnforceResourceLimits: snapshot.EnforceResourceLimits}}
	if snapshot.Policy == nil {
		return r, nil
	}
	compiled, err := policy.Compile(snapshot.Policy)
	r.request.Compiled = compiled
	return r, err
}

// of is why the sandbox is refused; nil when it is not.
func (r ruling) of(record *Record) ([]*adminv1.RuleViolation, error) {
	request := r.request
	request.Spec = record.Spec
	_, err := policy.Resolve(request)
	if err == nil {
		return nil, nil
	}
	var refusal *apierr.Error
	if !errors.As(err, &refusal) || refusal.Reason() == apierr.Internal {
		return nil, err
	}
	violations := refusal.Violations()
	if len(violations) == 0 {
		// There is no policy, and so no rule of one that is broken.
		violations = []apierr.Violation{{Field: "policy", Reason: string(refusal.Reason()), Description: refusal.Error()}}
	}
	told := make([]*adminv1.RuleViolation, len(violations))
	for i, violation := range violations {
		told[i] = &adminv1.RuleViolation{Field: violation.Field, Reason: violation.Reason, Description: violation.Description}
	}
	return told, nil
}
