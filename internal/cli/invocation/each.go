package invocation

import (
	"errors"
	"fmt"
)

// Each does something with every id, whatever happens to one. It says on
// standard output how each went and answers with all that failed; the exit code
// is that of the first.
func (i *Invocation) Each(ids []string, do func(id string) (outcome string, err error)) error {
	var failures []error
	for _, id := range ids {
		outcome, err := do(id)
		if err != nil {
			failures = append(failures, &ItemError{ID: id, cause: err})
			continue
		}
		if _, err := fmt.Fprintf(i.IO.Out, "%s %s\n", id, outcome); err != nil {
			return err
		}
	}
	return errors.Join(failures...)
}

// ItemError is what happened to one of several.
type ItemError struct {
	ID    string
	cause error
}

// Error is part of error.
func (e *ItemError) Error() string { return e.ID + ": " + e.cause.Error() }

// Unwrap returns the cause.
func (e *ItemError) Unwrap() error { return e.cause }
