package runner

import (
	"fmt"
	"strconv"
)

// Factor is how many times what the machine has sandboxes may be promised
// together. Less than 1 keeps a part of the machine for others.
type Factor float64

// The bounds of a Factor: beyond them it is a slip of the pen.
const (
	MinFactor Factor = 0.1
	MaxFactor Factor = 100
)

// What a local runner promises. CPU is compressible: when sandboxes ask for
// more at once than there is, each still gets its share by what it requested.
// Memory is not: a process that finds none is killed.
const (
	DefaultCPUFactor    Factor = 10
	DefaultMemoryFactor Factor = 1
)

// Validate says whether the factor is within its bounds.
func (f Factor) Validate() error {
	// In this form NaN fails, too.
	if !(f >= MinFactor && f <= MaxFactor) {
		return fmt.Errorf("%v is not a factor; write a number from %v to %v", f, MinFactor, MaxFactor)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (f Factor) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Factor) UnmarshalText(text []byte) error {
	number, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("%q is not a factor; write a number from %v to %v", text, MinFactor, MaxFactor)
	}
	*f = Factor(number)
	return f.Validate()
}

// String is the factor as it is written on a command line.
func (f Factor) String() string { return strconv.FormatFloat(float64(f), 'g', -1, 64) }

// of is the factor times what there is, rounded down.
func (f Factor) of(amount int64) int64 { return int64(float64(amount) * float64(f)) }
