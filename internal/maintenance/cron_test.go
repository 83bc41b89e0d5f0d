package maintenance

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestSchedulesComeWhenTheySay(t *testing.T) {
	tests := []struct{ name, cron, from, next string }{
		{"a named weekday", "0 2 * * SAT", "2026-11-30T00:00:00Z", "2026-12-05T02:00:00Z"},
		{"names in any case", "0 2 * dec sat", "2026-12-31T00:00:00Z", "2027-12-04T02:00:00Z"},
		{"its own minute is not too late", "30 2 * * *", "2026-11-30T02:30:00Z", "2026-11-30T02:30:00Z"},
		{"a moment after its minute is", "30 2 * * *", "2026-11-30T02:30:00.000000001Z", "2026-12-01T02:30:00Z"},
		{"steps", "*/20 * * * *", "2026-11-30T02:21:00Z", "2026-11-30T02:40:00Z"},
		{"steps from a value", "5/20 * * * *", "2026-11-30T02:46:00Z", "2026-11-30T03:05:00Z"},
		{"steps in a range", "0 8-18/5 * * *", "2026-11-30T13:01:00Z", "2026-11-30T18:00:00Z"},
		{"lists", "0 1,13 * * *", "2026-11-30T01:01:00Z", "2026-11-30T13:00:00Z"},
		{"a range of named weekdays", "0 0 * * MON-FRI", "2026-12-05T00:00:00Z", "2026-12-07T00:00:00Z"},
		{"7 is Sunday", "0 0 * * 7", "2026-11-30T00:00:00Z", "2026-12-06T00:00:00Z"},
		{"a range up to Sunday", "0 0 * * 6-7", "2026-12-06T00:00:00Z", "2026-12-06T00:00:00Z"},
		{"either day where both are restricted", "0 0 13 * FRI", "2026-11-30T00:00:00Z", "2026-12-04T00:00:00Z"},
		{"either day, the date first", "0 0 1 * FRI", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"},
		{"both days where one begins with a star", "0 0 */2 * SUN", "2026-11-30T00:00:00Z", "2026-12-13T00:00:00Z"},
		{"the 31st of months that have one", "0 0 31 * *", "2026-09-01T00:00:00Z", "2026-10-31T00:00:00Z"},
		{"a leap day", "0 0 29 2 *", "2026-11-30T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"a leap day over the century", "0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"a leap day that is a Sunday or a Saturday", "0 0 29 2 */6", "2026-11-30T00:00:00Z", "2032-02-29T00:00:00Z"},
		{"another zone is read as UTC", "0 2 * * *", "2026-11-30T03:30:00+02:00", "2026-11-30T02:00:00Z"},
		{"years turn", "59 23 31 12 *", "2026-12-31T23:59:01Z", "2027-12-31T23:59:00Z"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := parseCron(test.cron)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := c.next(at(test.from))
			if !ok || !got.Equal(at(test.next)) {
				t.Errorf("%s after %s comes %s, want %s", test.cron, test.from, got, test.next)
			}
		})
	}
}

func TestWhatIsNoScheduleIsRefused(t *testing.T) {
	tests := []struct{ name, cron, says string }{
		{"nothing", "", "has 0 fields and not five"},
		{"four fields", "* * * *", "has 4 fields"},
		{"seconds", "0 0 2 * * SAT", "has 6 fields"},
		{"a year", "0 2 * * SAT 2027", "has 6 fields"},
		{"a name for a schedule", "@weekly", "is a name"},
		{"a minute out of range", "60 * * * *", `has a minute that has "60"; write 0 to 59`},
		{"an hour out of range", "0 24 * * *", "write 0 to 23"},
		{"no day 0", "0 0 0 * *", "write 1 to 31"},
		{"no month 13", "0 0 1 13 *", "write 1 to 12 or JAN to DEC"},
		{"no weekday 8", "0 0 * * 8", "write 0 to 6 or SUN to SAT"},
		{"a month's name for a weekday", "0 0 * * JAN", "write 0 to 6"},
		{"a range backwards", "0 0 * * FRI-MON", "runs backwards"},
		{"a step of nothing", "*/0 * * * *", "has the step"},
		{"a step over everything", "*/90 * * * *", "write 1 to 60"},
		{"a step without a number", "*/ * * * *", "has the step"},
		{"two steps", "*/2/3 * * * *", "has the step"},
		{"a sign", "+1 * * * *", `has "+1"`},
		{"an empty member of a list", "1,,2 * * * *", `has ""`},
		{"the last day", "0 0 L * *", `has "L"`},
		{"the nearest weekday", "0 0 15W * *", `has "15W"`},
		{"the second Friday", "0 0 * * FRI#2", `has "FRI#2"`},
		{"no particular day", "0 0 ? * *", `has "?"`},
		{"30 February", "30 2 31 2 *", "never comes"},
		{"the 31st of short months", "0 0 31 4,6,9,11 *", "never comes"},
		{"a star beside other values", "0 0 * * *,SAT", "has * beside other values"},
		{"a line break", "0 2 *\n* SAT", "has 4 fields"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseCron(test.cron)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q: %v, want %q", test.cron, err, test.says)
			}
		})
	}
}

// expressions draws schedules of five fields, dense enough that they come
// within the span a test can look at, or sparse.
func expressions() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var fields []string
		for _, f := range cronFields() {
			if rapid.Bool().Draw(t, "star") {
				fields = append(fields, "*")
				continue
			}
			n := rapid.IntRange(1, 3).Draw(t, "members")
			var parts []string
			for range n {
				low := rapid.IntRange(f.min, f.max).Draw(t, "low")
				high := rapid.IntRange(low, f.max).Draw(t, "high")
				step := rapid.IntRange(1, f.max-f.min).Draw(t, "step")
				form := rapid.SampledFrom([]string{"a", "a-b", "*/n", "a-b/n"}).Draw(t, "form")
				parts = append(parts, strings.NewReplacer("a", itoa(low), "b", itoa(high), "n", itoa(step)).Replace(form))
			}
			fields = append(fields, strings.Join(parts, ","))
		}
		return strings.Join(fields, " ")
	})
}

func instants() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		seconds := rapid.Int64Range(at("2020-01-01T00:00:00Z").Unix(), at("2110-01-01T00:00:00Z").Unix()).Draw(t, "seconds")
		return time.Unix(seconds, rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC()
	})
}

// match is whether a schedule comes in the minute of t, read off the fields one
// by one.
func match(t time.Time, expression string) bool {
	texts := strings.Fields(expression)
	hit := func(i, value int) bool {
		set, err := cronFields()[i].parse(texts[i])
		if err != nil {
			panic(err)
		}
		return set&(1<<value) != 0
	}
	day, weekday := hit(2, t.Day()), hit(4, int(t.Weekday()))
	either := texts[2][0] != '*' && texts[4][0] != '*'
	return hit(0, t.Minute()) && hit(1, t.Hour()) && hit(3, int(t.Month())) &&
		(day && weekday || either && (day || weekday))
}

func TestASchedulesNextTimeMatchesAndNoneBeforeItDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		expression := expressions().Draw(t, "cron")
		c, err := parseCron(expression)
		if err != nil {
			t.Skip(err)
		}
		from := instants().Draw(t, "from")
		next, ok := c.next(from)
		if !ok || next.Before(from) || !match(next, expression) || !next.Equal(next.Truncate(time.Minute)) {
			t.Fatalf("%s after %s comes %s, %t", expression, from, next, ok)
		}
		first := from.Truncate(time.Minute)
		if first.Before(from) {
			first = first.Add(time.Minute)
		}
		// Every minute before it for a while, then some of the rest.
		minutes := int(next.Sub(first) / time.Minute)
		for i := range min(minutes, 500) {
			if skipped := next.Add(-time.Duration(i+1) * time.Minute); match(skipped, expression) {
				t.Fatalf("%s comes at %s, before %s", expression, skipped, next)
			}
		}
		for range min(minutes, 50) {
			if skipped := first.Add(time.Duration(rapid.IntRange(0, minutes-1).Draw(t, "skipped")) * time.Minute); match(skipped, expression) {
				t.Fatalf("%s comes at %s, before %s", expression, skipped, next)
			}
		}
	})
}

// The longest that any sound schedule stays away is forty years: a leap day on
// a given weekday, over a century that has none.
func TestTheRarestSchedulesAreFound(t *testing.T) {
	for _, expression := range []string{"0 0 29 2 */7", "59 23 29 2 */7", "*/7 */5 29 2 */7", "0 0 29 2 */6", "0 0 29 2 */4", "0 0 */28 2 */7"} {
		c, err := parseCron(expression)
		if err != nil {
			t.Fatal(err)
		}
		for year := 2026; year < 2430; year++ {
			from := time.Date(year, 3, 1, 0, 0, 0, 0, time.UTC)
			next, ok := c.next(from)
			if !ok || !match(next, expression) || next.Year() > year+40 {
				t.Errorf("%s after %d comes %s, %t", expression, year, next, ok)
			}
		}
	}
}

func FuzzCron(f *testing.F) {
	for _, seed := range []string{"0 2 * * SAT", "*/5 1-3,7 1 JAN-MAR 0-7/2", "@daily", "30 2 31 2 *", "a/b - * / ,"} {
		f.Add(seed)
	}
	from := at("2026-11-30T00:00:00Z")
	f.Fuzz(func(t *testing.T, expression string) {
		c, err := parseCron(expression)
		if err != nil {
			return
		}
		next, ok := c.next(from)
		if !ok || next.Before(from) || !match(next, c.expression) {
			t.Errorf("%q comes at %s, %t", expression, next, ok)
		}
	})
}
