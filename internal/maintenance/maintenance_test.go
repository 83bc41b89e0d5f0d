package maintenance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// maintained is a maintenance policy; change it with the functions below.
func maintained(parts ...func(*sandboxv1.MaintenancePolicy)) *sandboxv1.MaintenancePolicy {
	p := &sandboxv1.MaintenancePolicy{}
	for _, part := range parts {
		part(p)
	}
	return p
}

func during(cron string, lasts time.Duration) func(*sandboxv1.MaintenancePolicy) {
	return func(p *sandboxv1.MaintenancePolicy) {
		p.Windows = append(p.Windows, &sandboxv1.MaintenanceWindow{Cron: cron, DurationSeconds: int64(lasts / time.Second)})
	}
}

func except(start, end string) func(*sandboxv1.MaintenancePolicy) {
	return func(p *sandboxv1.MaintenancePolicy) {
		p.Exclusions = append(p.Exclusions, &sandboxv1.MaintenanceExclusion{
			StartTime: timestamppb.New(at(start)), EndTime: timestamppb.New(at(end)), Reason: "release week",
		})
	}
}

func TestWhenAnUpdateMayStart(t *testing.T) {
	saturdays := during("0 2 * * SAT", time.Hour)
	tests := []struct {
		name   string
		policy *sandboxv1.MaintenancePolicy
		at     string
		// next is when it may start; the same as at when it may at once.
		next string
	}{
		{"without a policy, at once", nil, "2026-11-30T12:00:00Z", "2026-11-30T12:00:00Z"},
		{"without windows, at once", maintained(), "2026-11-30T12:00:00.5Z", "2026-11-30T12:00:00.5Z"},
		{"when the window opens", maintained(saturdays), "2026-12-05T02:00:00Z", "2026-12-05T02:00:00Z"},
		{"until just before it closes", maintained(saturdays), "2026-12-05T02:59:59.999999999Z", "2026-12-05T02:59:59.999999999Z"},
		{"not when it closes", maintained(saturdays), "2026-12-05T03:00:00Z", "2026-12-12T02:00:00Z"},
		{"not before it opens", maintained(saturdays), "2026-11-30T12:00:00Z", "2026-12-05T02:00:00Z"},
		{"over midnight", maintained(during("30 23 * * *", time.Hour)), "2026-12-01T00:29:59Z", "2026-12-01T00:29:59Z"},
		{"over the end of a year", maintained(during("0 12 31 12 *", 48*time.Hour)), "2027-01-02T11:00:00Z", "2027-01-02T11:00:00Z"},
		{"for a whole week", maintained(during("0 0 * * MON", MaxWindow)), "2026-12-06T23:59:59Z", "2026-12-06T23:59:59Z"},
		{"for a minute", maintained(during("0 2 * * *", MinWindow)), "2026-12-01T02:01:00Z", "2026-12-02T02:00:00Z"},
		{"windows longer than their period never close", maintained(during("0 * * * *", 90*time.Minute)), "2026-12-01T05:59:59Z", "2026-12-01T05:59:59Z"},
		{"windows that touch never close", maintained(during("0 * * * *", time.Hour)), "2026-12-01T05:00:00Z", "2026-12-01T05:00:00Z"},
		{"the earlier of two windows", maintained(saturdays, during("0 4 * * THU", time.Hour)), "2026-11-30T12:00:00Z", "2026-12-03T04:00:00Z"},
		{"one window inside another", maintained(during("0 0 * * *", 4*time.Hour), during("0 1 * * *", time.Hour)), "2026-12-01T03:00:00Z", "2026-12-01T03:00:00Z"},
		{"on a leap day only", maintained(during("0 0 29 2 *", time.Hour)), "2026-11-30T12:00:00Z", "2028-02-29T00:00:00Z"},
		{"not inside an exclusion", maintained(except("2026-12-01T00:00:00Z", "2026-12-08T00:00:00Z")), "2026-12-01T00:00:00Z", "2026-12-08T00:00:00Z"},
		{"just before an exclusion", maintained(except("2026-12-01T00:00:00Z", "2026-12-08T00:00:00Z")), "2026-11-30T23:59:59Z", "2026-11-30T23:59:59Z"},
		{"when an exclusion ends inside a window", maintained(saturdays, except("2026-12-01T00:00:00Z", "2026-12-05T02:10:00.25Z")), "2026-11-30T12:00:00Z", "2026-12-05T02:10:00.25Z"},
		{"after an exclusion that swallows a window", maintained(saturdays, except("2026-12-05T02:00:00Z", "2026-12-05T03:00:00Z")), "2026-11-30T12:00:00Z", "2026-12-12T02:00:00Z"},
		{"after exclusions that overlap", maintained(except("2026-12-01T00:00:00Z", "2026-12-08T00:00:00Z"), except("2026-12-07T00:00:00Z", "2026-12-20T00:00:00Z")), "2026-12-02T00:00:00Z", "2026-12-20T00:00:00Z"},
		{"after exclusions that touch", maintained(except("2026-12-08T00:00:00Z", "2026-12-20T00:00:00Z"), except("2026-12-01T00:00:00Z", "2026-12-08T00:00:00Z")), "2026-12-02T00:00:00Z", "2026-12-20T00:00:00Z"},
		{"after an exclusion of years", maintained(saturdays, except("2026-01-01T00:00:00Z", "2060-01-01T00:00:00Z")), "2026-11-30T12:00:00Z", "2060-01-03T02:00:00Z"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			next, ok := Next(test.policy, at(test.at))
			if !ok || !next.Equal(at(test.next)) {
				t.Errorf("next after %s is %s, %t; want %s", test.at, next, ok, test.next)
			}
			now, reason := CanStart(test.policy, at(test.at))
			if want := test.at == test.next; now != want || (reason == "") != want {
				t.Errorf("can start at %s: %t, %q; want %t", test.at, now, reason, want)
			}
		})
	}
}

func TestARefusalSaysWhy(t *testing.T) {
	tests := []struct {
		name   string
		policy *sandboxv1.MaintenancePolicy
		want   string
	}{
		{
			"an exclusion by its times and reason", maintained(except("2026-11-01T00:00:00Z", "2026-12-08T00:00:00Z")),
			"inside the exclusion from 2026-11-01T00:00:00Z to 2026-12-08T00:00:00Z (release week)",
		},
		{"a closed window", maintained(during("0 2 * * SAT", time.Hour)), "outside every maintenance window"},
		{
			"a policy that cannot be read", maintained(during("whenever", time.Hour)),
			`the maintenance policy cannot be read: windows[0].cron: "whenever" has 1 fields and not five: minute, hour, day of the month, month, day of the week`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ok, reason := CanStart(test.policy, at("2026-11-30T12:00:00Z"))
			if ok || reason != test.want {
				t.Errorf("%t, %q; want %q", ok, reason, test.want)
			}
		})
	}
}

func TestAPolicyThatCannotBeReadNeverComes(t *testing.T) {
	if next, ok := Next(maintained(during("30 2 31 2 *", time.Hour)), at("2026-11-30T12:00:00Z")); ok {
		t.Errorf("%s", next)
	}
}

func TestTheExclusionThatHoldsIsNamed(t *testing.T) {
	p := maintained(except("2026-11-01T00:00:00Z", "2026-11-30T12:00:00Z"), except("2026-11-30T12:00:00Z", "2026-12-01T00:00:00Z"))
	if got := Excluded(p, at("2026-11-30T12:00:00Z")); got != p.GetExclusions()[1] {
		t.Errorf("%v", got)
	}
	if got := Excluded(p, at("2026-12-01T00:00:00Z")); got != nil {
		t.Errorf("%v", got)
	}
}

func TestEverythingWrongWithAPolicyIsSaidAtOnce(t *testing.T) {
	p := maintained(
		during("0 2 * * SAT", time.Hour), during("0 2 * * CAT", 59*time.Second), during("@daily", MaxWindow+time.Second),
		except("2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z"),
	)
	p.Exclusions = append(p.Exclusions, &sandboxv1.MaintenanceExclusion{}, &sandboxv1.MaintenanceExclusion{
		StartTime: &timestamppb.Timestamp{Nanos: -1}, EndTime: &timestamppb.Timestamp{Seconds: 1 << 60},
	})
	var got []string
	for _, v := range Validate(p, "spec.maintenance_policy") {
		got = append(got, v.Field+" "+v.Reason)
	}
	want := []string{
		"spec.maintenance_policy.windows[1].cron INVALID_CRON",
		"spec.maintenance_policy.windows[1].duration_seconds OUT_OF_RANGE",
		"spec.maintenance_policy.windows[2].cron INVALID_CRON",
		"spec.maintenance_policy.windows[2].duration_seconds OUT_OF_RANGE",
		"spec.maintenance_policy.exclusions[0].end_time END_NOT_AFTER_START",
		"spec.maintenance_policy.exclusions[1].start_time REQUIRED",
		"spec.maintenance_policy.exclusions[1].end_time REQUIRED",
		"spec.maintenance_policy.exclusions[2].start_time INVALID_TIME",
		"spec.maintenance_policy.exclusions[2].end_time INVALID_TIME",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSoundPoliciesHaveNoViolations(t *testing.T) {
	for _, p := range []*sandboxv1.MaintenancePolicy{
		nil, {}, maintained(during("0 2 * * SAT", time.Hour), during("* * * * *", MinWindow), except("2026-12-01T00:00:00Z", "2026-12-01T00:00:00.000000001Z")),
	} {
		if v := Validate(p, "spec.maintenance_policy"); v != nil {
			t.Errorf("%v: %v", p, v)
		}
	}
}

// policies draws sound policies whose windows and exclusions meet within a few
// weeks of a fixed day.
func policies() *rapid.Generator[*sandboxv1.MaintenancePolicy] {
	return rapid.Custom(func(t *rapid.T) *sandboxv1.MaintenancePolicy {
		p := &sandboxv1.MaintenancePolicy{}
		for range rapid.IntRange(0, 3).Draw(t, "windows") {
			cron := expressions().Draw(t, "cron")
			if _, err := parseCron(cron); err != nil {
				t.Skip(err)
			}
			seconds := rapid.OneOf(rapid.Int64Range(60, 7200), rapid.Int64Range(60, 604800)).Draw(t, "seconds")
			p.Windows = append(p.Windows, &sandboxv1.MaintenanceWindow{Cron: cron, DurationSeconds: seconds})
		}
		for range rapid.IntRange(0, 3).Draw(t, "exclusions") {
			start := at("2026-11-30T00:00:00Z").Add(time.Duration(rapid.Int64Range(-40*24*3600, 40*24*3600).Draw(t, "start")) * time.Second)
			lasts := time.Duration(rapid.Int64Range(1, int64(20*24*time.Hour)).Draw(t, "lasts"))
			p.Exclusions = append(p.Exclusions, &sandboxv1.MaintenanceExclusion{
				StartTime: timestamppb.New(start), EndTime: timestamppb.New(start.Add(lasts)),
			})
		}
		return p
	})
}

func TestNextIsAllowedAndNothingBeforeItIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies().Draw(t, "policy")
		after := at("2026-11-30T00:00:00Z").Add(time.Duration(rapid.Int64Range(0, int64(20*24*time.Hour)).Draw(t, "after")))
		next, ok := Next(p, after)
		if !ok || next.Before(after) {
			t.Fatalf("next after %s is %s, %t", after, next, ok)
		}
		if ok, reason := CanStart(p, next); !ok {
			t.Fatalf("cannot start at %s: %s", next, reason)
		}
		gap := next.Sub(after)
		for range 50 {
			if gap == 0 {
				break
			}
			earlier := after.Add(time.Duration(rapid.Int64Range(0, int64(gap)-1).Draw(t, "earlier")))
			if ok, _ := CanStart(p, earlier); ok {
				t.Fatalf("could start at %s, before %s", earlier, next)
			}
		}
		if gap > 0 {
			if ok, _ := CanStart(p, next.Add(-1)); ok {
				t.Fatalf("could start just before %s", next)
			}
		}
	})
}

func TestAnExclusionOnlyTakesAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies().Draw(t, "policy")
		when := at("2026-11-30T00:00:00Z").Add(time.Duration(rapid.Int64Range(0, int64(20*24*time.Hour)).Draw(t, "when")))
		with, _ := CanStart(p, when)
		p.Exclusions = nil
		without, _ := CanStart(p, when)
		if with && !without {
			t.Fatal("may start with the exclusions, and not without")
		}
	})
}
