package output

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Unset stands in tables for what has no value.
const Unset = "-"

// OrUnset is text, or Unset when it is empty.
func OrUnset(text string) string {
	if text == "" {
		return Unset
	}
	return text
}

// Age is how long ago that was, in one or two units: "35s", "2h5m", "3d".
func Age(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil {
		return Unset
	}
	age := max(now.Sub(at.AsTime()), 0)
	switch {
	case age < time.Minute:
		return fmt.Sprintf("%ds", int(age.Seconds()))
	case age < time.Hour:
		return fmt.Sprintf("%dm", int(age.Minutes()))
	case age < 24*time.Hour:
		if minutes := int(age.Minutes()) % 60; minutes > 0 {
			return fmt.Sprintf("%dh%dm", int(age.Hours()), minutes)
		}
		return fmt.Sprintf("%dh", int(age.Hours()))
	}
	return fmt.Sprintf("%dd", int(age.Hours())/24)
}

// Time is the moment in RFC 3339, UTC, for text that has room for it.
func Time(at *timestamppb.Timestamp) string {
	if at == nil {
		return Unset
	}
	return at.AsTime().UTC().Format(time.RFC3339)
}

// Bytes is a size in binary units: "512B", "3.4MiB".
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(binaryUnits)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f%s", value, binaryUnits[unit])
}

var binaryUnits = []string{"KiB", "MiB", "GiB", "TiB"}

// Count is a number of things: "1 image", "2 images".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Word is an enum value without its prefix: "RUNNER_INSTALL_STATUS_READY" with
// prefix "RUNNER_INSTALL_STATUS_" is "READY"; the unspecified value is Unset.
func Word(value fmt.Stringer, prefix string) string {
	word := strings.TrimPrefix(value.String(), prefix)
	if word == "UNSPECIFIED" {
		return Unset
	}
	return word
}
