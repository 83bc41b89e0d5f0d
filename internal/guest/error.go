package guest

import (
	"fmt"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// Error is a call that the guest refused or could not do. Connection failures
// are never an Error; find one with errors.As.
type Error struct {
	Code guestv1.Error_Code
	// Message says what was wrong, for a person.
	Message string
	// SizeBytes is how large the file is, with Error_TOO_LARGE.
	SizeBytes int64
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("guest: %s (%s)", e.Message, e.Code)
}

func errorFrom(e *guestv1.Error) *Error {
	return &Error{Code: e.GetCode(), Message: e.GetMessage(), SizeBytes: e.GetSizeBytes()}
}
