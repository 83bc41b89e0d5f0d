package policy

import (
	"fmt"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// severity says what kind of rule a violation breaks; the worst one gives the
// error its reason.
type severity int

const (
	// overCeiling: more than the sandbox as a whole may have.
	overCeiling severity = iota + 1
	// outsidePolicy: the policy does not allow it.
	outsidePolicy
	// invalid: it has no meaning, or the platform allows it under no policy.
	invalid
)

var reasons = map[severity]apierr.Reason{
	overCeiling:   apierr.ResourceCeilingExceeded,
	outsidePolicy: apierr.PolicyViolation,
	invalid:       apierr.InvalidRequest,
}

// refusal collects every rule that one request breaks.
type refusal struct {
	violations []apierr.Violation
	worst      severity
}

// add records a violation. rule is the Violation's reason.
func (r *refusal) add(s severity, field, rule, format string, args ...any) {
	r.worst = max(r.worst, s)
	r.violations = append(r.violations, apierr.Violation{
		Field: field, Description: fmt.Sprintf(format, args...), Reason: rule,
	})
}

// addProblems records what is wrong inside the field of that path.
func (r *refusal) addProblems(field string, problems []problem) {
	for _, p := range problems {
		r.add(invalid, join(field, p.field), p.rule, "%s", p.text)
	}
}

// err is nil when nothing was refused.
func (r *refusal) err() error {
	return apierr.Invalid(reasons[r.worst], r.violations)
}

// problem is something wrong inside a field whose path the finder does not
// know; field is relative and may be empty.
type problem struct {
	field, rule, text string
}

func join(path, name string) string {
	if name == "" {
		return path
	}
	return path + "." + name
}

func element(path string, index int) string {
	return fmt.Sprintf("%s[%d]", path, index)
}
