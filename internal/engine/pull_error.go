package engine

import (
	"errors"
	"strings"
)

// PullError is why no place had an image that could be used. errors.Is finds
// the engine's error of the attempt that decides: the registry's own answer,
// unless it gave none and a mirror did.
type PullError struct {
	// Reference is as the user wrote it.
	Reference string
	// Attempts are in the order in which the places were asked; at least one.
	Attempts []PullAttempt
}

// PullAttempt is what came of asking one place.
type PullAttempt struct {
	// Address is the place's base URL; empty when there was nothing to ask.
	Address string
	// Mirror: it stands in for the registry of the reference.
	Mirror bool
	// Cause is for people, in one line and without secrets.
	Cause string
	// Hint is what to do about this cause; empty when there is nothing to say.
	Hint string
	// Err wraps one of the engine's errors.
	Err error
}

// Error names the image, every place that was asked and what it answered, and
// what to do about the answer that decides.
func (e *PullError) Error() string {
	parts := make([]string, 0, len(e.Attempts)+1)
	for _, attempt := range e.Attempts {
		parts = append(parts, attempt.String())
	}
	if hint := e.decisive().Hint; hint != "" {
		parts = append(parts, hint)
	}
	return e.Reference + ": " + strings.Join(parts, "; ")
}

// String is where and why.
func (a PullAttempt) String() string {
	switch {
	case a.Address == "":
		return a.Cause
	case a.Mirror:
		return "mirror " + a.Address + ": " + a.Cause
	default:
		return "registry " + a.Address + ": " + a.Cause
	}
}

// Unwrap is part of error.
func (e *PullError) Unwrap() error { return e.decisive().Err }

func (e *PullError) decisive() PullAttempt {
	last := e.Attempts[len(e.Attempts)-1]
	if errors.Is(last.Err, ErrRegistryUnavailable) {
		for _, attempt := range e.Attempts {
			if errors.Is(attempt.Err, ErrImageNotFound) {
				return attempt
			}
		}
	}
	return last
}
