package apierr

import "slices"

// Violations collects what is wrong with one request. The zero value is ready
// to use.
type Violations []Violation

// Add appends a violation, whose text is made as Violated makes it.
func (v *Violations) Add(field, reason, format string, args ...any) {
	*v = append(*v, Violated(field, reason, format, args...))
}

// Merge appends those of fields of which nothing is known yet, so that a rule
// that two places check is told once.
func (v *Violations) Merge(others []Violation) {
	own := slices.Clone(*v)
	for _, other := range others {
		if !slices.ContainsFunc(own, func(known Violation) bool { return known.Field == other.Field }) {
			*v = append(*v, other)
		}
	}
}

// Err is InvalidRequest with all of them, or nil when there are none.
func (v Violations) Err() error { return Invalid(InvalidRequest, v) }
