package guest

import (
	"errors"
	"io"
	"syscall"
)

// isDisconnect reports whether err says that the peer closed the connection.
func isDisconnect(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

func ignoreDisconnect(err error) error {
	if isDisconnect(err) {
		return nil
	}
	return err
}
