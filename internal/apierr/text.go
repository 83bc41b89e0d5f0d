package apierr

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of what an error says, in bytes. gRPC clients take about 8 KiB of
// trailers, in which the message stands twice and the details once, in base64:
// an error that is larger does not arrive.
const (
	maxQuoted      = 128
	maxField       = 256
	maxDescription = 768
	maxMessage     = 1536
	maxViolations  = 2304
	// maxMetadata leaves paths whole, which clients compare.
	maxMetadata = 4096

	// violationOverhead is what encoding adds to the texts of one.
	violationOverhead = 10

	ellipsis = "…"
)

// Violated makes a violation. What %q quotes of strings is cut to a bounded
// length: values come from callers, who may send megabytes.
func Violated(field, reason, format string, args ...any) Violation {
	return Violation{Field: field, Reason: reason, Description: sprintf(format, args...)}
}

func sprintf(format string, args ...any) string {
	bounded := make([]any, len(args))
	for i, arg := range args {
		bounded[i] = arg
		if text, ok := arg.(string); ok {
			bounded[i] = quotable(text)
		}
	}
	return fmt.Sprintf(format, bounded...)
}

// quotable is a string that is cut where it is quoted.
type quotable string

// Format implements fmt.Formatter.
func (q quotable) Format(state fmt.State, verb rune) {
	text := string(q)
	if verb == 'q' && len(text) > maxQuoted {
		text = head(text, maxQuoted) + ellipsis
	}
	fmt.Fprintf(state, fmt.FormatString(state, verb), text)
}

// elide takes the middle out of a text that is longer than limit bytes: its
// beginning says what is wrong, its end what to do.
func elide(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	keep := limit - len(ellipsis)
	return head(text, keep-keep/3) + ellipsis + tail(text, keep/3)
}

// head is at most n bytes of the beginning, in whole characters.
func head(text string, n int) string {
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// tail is at most n bytes of the end, in whole characters.
func tail(text string, n int) string {
	from := len(text) - n
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return text[from:]
}

// boundViolations cuts texts that are too long, and leaves out the last ones
// when they are too many to be sent; left is how many.
func boundViolations(violations []Violation) (bounded []Violation, left int) {
	size := 0
	for i, v := range violations {
		v.Field, v.Description = elide(v.Field, maxField), elide(v.Description, maxDescription)
		size += len(v.Field) + len(v.Description) + len(v.Reason) + violationOverhead
		if size > maxViolations && i > 0 {
			return bounded, len(violations) - i
		}
		bounded = append(bounded, v)
	}
	return bounded, 0
}

// summarize is the message of an error of violations, of which left are not
// told one by one.
func summarize(violations []Violation, left int) string {
	var message strings.Builder
	for i, v := range violations {
		line := v.Field + ": " + v.Description
		if i > 0 && message.Len()+len("; ")+len(line) > maxMessage {
			left += len(violations) - i
			break
		}
		if i > 0 {
			message.WriteString("; ")
		}
		message.WriteString(line)
	}
	if left > 0 {
		fmt.Fprintf(&message, "; and %d more", left)
	}
	return message.String()
}
