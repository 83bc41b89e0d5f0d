package maintenance

import (
	"fmt"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Bounds on how long a window stays open.
const (
	MinWindow = time.Minute
	MaxWindow = 7 * 24 * time.Hour
)

// Validate says what is wrong with a maintenance policy as it is written. path
// is that of the policy ("spec.maintenance_policy"). Nil and the empty policy
// are sound.
func Validate(p *sandboxv1.MaintenancePolicy, path string) []apierr.Violation {
	_, violations := compile(p, path)
	return violations
}

// CanStart says whether an automatic update may start at that time, and if not,
// why not.
func CanStart(p *sandboxv1.MaintenancePolicy, at time.Time) (ok bool, reason string) {
	s, violations := compile(p, "")
	if violations != nil {
		return false, fmt.Sprintf("the maintenance policy cannot be read: %s: %s", violations[0].Field, violations[0].Description)
	}
	if e := s.exclusionAt(at); e != nil {
		return false, e.describe()
	}
	if !s.open(at) {
		return false, "outside every maintenance window"
	}
	return true, ""
}

// Next is the first time not before after at which an automatic update may
// start. ok is false when the policy cannot be read; otherwise there is one, as
// exclusions end and windows open again and again.
func Next(p *sandboxv1.MaintenancePolicy, after time.Time) (start time.Time, ok bool) {
	s, violations := compile(p, "")
	if violations != nil {
		return time.Time{}, false
	}
	// Each turn of the loop leaves an exclusion for good or comes to the opening
	// of a window, where only an exclusion can hold it up.
	at := after
	for {
		if e := s.exclusionAt(at); e != nil {
			at = e.end
			continue
		}
		if s.open(at) {
			return at, true
		}
		if at, ok = s.nextOpening(at); !ok {
			return time.Time{}, false
		}
	}
}

// Excluded is the exclusion that holds at that time, or nil. It binds updates
// that a person asks for too, unless an administrator forces them.
func Excluded(p *sandboxv1.MaintenancePolicy, at time.Time) *sandboxv1.MaintenanceExclusion {
	for _, e := range p.GetExclusions() {
		if x := newExclusion(e); x.holds(at) {
			return e
		}
	}
	return nil
}

// schedule is a maintenance policy, parsed.
type schedule struct {
	windows    []window
	exclusions []exclusion
}

type window struct {
	opens cron
	lasts time.Duration
}

// exclusion holds from start, which is in it, to end, which is not.
type exclusion struct {
	start, end time.Time
	reason     string
}

func newExclusion(e *sandboxv1.MaintenanceExclusion) exclusion {
	return exclusion{start: e.GetStartTime().AsTime(), end: e.GetEndTime().AsTime(), reason: e.GetReason()}
}

func (e exclusion) holds(at time.Time) bool {
	return !at.Before(e.start) && at.Before(e.end)
}

func (e exclusion) describe() string {
	text := fmt.Sprintf("inside the exclusion from %s to %s", e.start.Format(time.RFC3339), e.end.Format(time.RFC3339))
	if e.reason != "" {
		text += fmt.Sprintf(" (%s)", e.reason)
	}
	return text
}

// exclusionAt is one that holds at that time; nil when none does.
func (s *schedule) exclusionAt(at time.Time) *exclusion {
	for i := range s.exclusions {
		if s.exclusions[i].holds(at) {
			return &s.exclusions[i]
		}
	}
	return nil
}

// open says whether a window is open, or there are none.
func (s *schedule) open(at time.Time) bool {
	if len(s.windows) == 0 {
		return true
	}
	for _, w := range s.windows {
		// The window is open when it opened less than its length ago.
		since := at.Add(-w.lasts).Truncate(time.Minute).Add(time.Minute)
		if opened, ok := w.opens.next(since); ok && !opened.After(at) {
			return true
		}
	}
	return false
}

// nextOpening is the first time not before at that a window opens.
func (s *schedule) nextOpening(at time.Time) (first time.Time, ok bool) {
	for _, w := range s.windows {
		if next, found := w.opens.next(at); found && (!ok || next.Before(first)) {
			first, ok = next, true
		}
	}
	return first, ok
}

// compile reads a policy, or says all that is wrong with it.
func compile(p *sandboxv1.MaintenancePolicy, path string) (*schedule, []apierr.Violation) {
	var s schedule
	var violations []apierr.Violation
	add := func(rule, description, list string, i int, field string) {
		at := fmt.Sprintf("%s[%d].%s", list, i, field)
		if path != "" {
			at = path + "." + at
		}
		violations = append(violations, apierr.Violation{Field: at, Description: description, Reason: rule})
	}
	for i, w := range p.GetWindows() {
		opens, err := parseCron(w.GetCron())
		if err != nil {
			add("INVALID_CRON", fmt.Sprintf("%q %v", w.GetCron(), err), "windows", i, "cron")
		}
		lasts := time.Duration(w.GetDurationSeconds()) * time.Second
		if seconds := w.GetDurationSeconds(); seconds < int64(MinWindow/time.Second) || seconds > int64(MaxWindow/time.Second) {
			add("OUT_OF_RANGE", fmt.Sprintf("%d must be 60 to 604800 (a minute to a week)", seconds), "windows", i, "duration_seconds")
		}
		s.windows = append(s.windows, window{opens, lasts})
	}
	for i, e := range p.GetExclusions() {
		startErr, endErr := e.GetStartTime().CheckValid(), e.GetEndTime().CheckValid()
		switch {
		case e.GetStartTime() == nil:
			add("REQUIRED", "is required", "exclusions", i, "start_time")
		case startErr != nil:
			add("INVALID_TIME", "is not a time that can be written in RFC 3339", "exclusions", i, "start_time")
		}
		switch {
		case e.GetEndTime() == nil:
			add("REQUIRED", "is required", "exclusions", i, "end_time")
		case endErr != nil:
			add("INVALID_TIME", "is not a time that can be written in RFC 3339", "exclusions", i, "end_time")
		case startErr == nil && !e.GetEndTime().AsTime().After(e.GetStartTime().AsTime()):
			add("END_NOT_AFTER_START", fmt.Sprintf("%s must be after start_time, %s",
				e.GetEndTime().AsTime().Format(time.RFC3339Nano), e.GetStartTime().AsTime().Format(time.RFC3339Nano)), "exclusions", i, "end_time")
		}
		s.exclusions = append(s.exclusions, newExclusion(e))
	}
	if violations != nil {
		return nil, violations
	}
	return &s, nil
}
