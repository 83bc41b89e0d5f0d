package maintenance

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

// cron is a schedule of five fields that was found sound.
type cron struct {
	expression string
}

// cronField is what one of the five may hold.
type cronField struct {
	name     string
	min, max int
	// names stand for min, min+1, …
	names []string
	// alias is one value above max that stands for min; 0 when there is none.
	alias int
}

func cronFields() [5]cronField {
	return [...]cronField{
		{name: "minute", max: 59},
		{name: "hour", max: 23},
		{name: "day of the month", min: 1, max: 31},
		{name: "month", min: 1, max: 12, names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
		{name: "day of the week", max: 6, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}, alias: 7},
	}
}

// parseCron reads exactly five fields: minute, hour, day of the month, month
// and day of the week. Each is a list of *, a value, a range a-b, and any of
// them with a step (*/n, a/n, a-b/n). Months and weekdays may be named.
// Its error says what was wrong in words that follow the expression.
func parseCron(expression string) (cron, error) {
	texts := strings.FieldsFunc(expression, func(r rune) bool { return r == ' ' || r == '\t' })
	if strings.HasPrefix(strings.TrimSpace(expression), "@") {
		return cron{}, errors.New(`is a name, not a schedule; write five fields such as "0 2 * * SAT"`)
	}
	if len(texts) != 5 {
		return cron{}, fmt.Errorf("has %d fields and not five: minute, hour, day of the month, month, day of the week", len(texts))
	}
	var sets [5]uint64
	for i, field := range cronFields() {
		set, err := field.parse(texts[i])
		if err != nil {
			return cron{}, fmt.Errorf("has a %s that %w", field.name, err)
		}
		sets[i] = set
	}
	// When both kinds of day are restricted either is enough, unless one begins
	// with a star; weekdays come in every month.
	either := texts[2][0] != '*' && texts[4][0] != '*'
	if days, months := sets[2], sets[3]; !either && !hasDate(days, months) {
		return cron{}, errors.New("never comes: no such month has such a day")
	}
	return cron{strings.Join(texts, " ")}, nil
}

func (f cronField) parse(text string) (uint64, error) {
	var set uint64
	for part := range strings.SplitSeq(text, ",") {
		if part == "*" && text != "*" {
			return 0, errors.New("has * beside other values; write one or the other")
		}
		values, err := f.parsePart(part)
		if err != nil {
			return 0, err
		}
		set |= values
	}
	return set, nil
}

func (f cronField) parsePart(part string) (uint64, error) {
	span, stepText, stepped := strings.Cut(part, "/")
	first, last := f.min, f.max
	if span != "*" {
		from, to, ranged := strings.Cut(span, "-")
		var err error
		if first, err = f.value(from); err != nil {
			return 0, err
		}
		switch {
		case ranged:
			if last, err = f.value(to); err != nil {
				return 0, err
			}
			if first > last {
				return 0, fmt.Errorf("runs backwards in %q", span)
			}
		case !stepped:
			last = first
		case first > f.max:
			return 0, fmt.Errorf("has the step %q, which has no meaning from there", part)
		}
	}
	step := 1
	if stepped {
		n, err := number(stepText)
		if most := f.max - f.min + 1; err != nil || n < 1 || n > most {
			return 0, fmt.Errorf("has the step %q; write 1 to %d", stepText, most)
		}
		step = n
	}
	var set uint64
	for v := first; v <= last; v += step {
		if v > f.max {
			set |= 1 << f.min
		} else {
			set |= 1 << v
		}
	}
	return set, nil
}

func (f cronField) value(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
	}
	n, err := number(text)
	if err != nil || n < f.min || n > max(f.max, f.alias) {
		return 0, fmt.Errorf("has %q; write %d to %d%s", text, f.min, f.max, f.orNames())
	}
	return n, nil
}

func (f cronField) orNames() string {
	if f.names == nil {
		return ""
	}
	return fmt.Sprintf(" or %s to %s", f.names[0], f.names[len(f.names)-1])
}

// number reads digits, and nothing else that numbers may have.
func number(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || strings.HasPrefix(text, "+") {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return int(n), nil
}

// hasDate says whether one of the months has one of the days. Every date,
// 29 February included, falls on each weekday in some year.
func hasDate(days, months uint64) bool {
	longest := [...]int{1: 31, 2: 29, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}
	for month := 1; month <= 12; month++ {
		if months&(1<<month) != 0 && days&(1<<(longest[month]+1)-1) != 0 {
			return true
		}
	}
	return false
}

// next is the first time not before t at which the schedule comes; ok is false
// when there is none in sight.
func (c cron) next(t time.Time) (next time.Time, ok bool) {
	t = t.UTC()
	if minute := t.Truncate(time.Minute); minute.Before(t) {
		t = minute.Add(time.Minute)
	}
	next, err := gronx.NextTickAfter(c.expression, t, true)
	return next, err == nil
}
