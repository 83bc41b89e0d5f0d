package cli

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

// report says what went wrong, on standard error, one paragraph for each
// failure. What a process in a sandbox ended with is no failure of ours, and a
// reader that has gone away needs no message.
func report(streams *iostreams.IO, err error) {
	var exit invocation.ExitError
	if err == nil || errors.As(err, &exit) || errors.Is(err, unix.EPIPE) {
		return
	}
	for _, one := range split(err) {
		fmt.Fprintf(streams.Err, "%s %s\n", streams.Red("error:"), describe(one))
	}
}

// split takes joined errors apart.
func split(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.As(err, new(*invocation.UsageError)) {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, split(one)...)
	}
	return all
}

func describe(err error) string {
	var sent *connect.Error
	if !errors.As(err, &sent) {
		return err.Error()
	}
	message, details := sent.Message(), ""
	if !connect.IsWireError(err) && sent.Code() == connect.CodeUnavailable {
		message = "the server does not answer: " + message
		details = "\n  Is it running, and is its address right? See --endpoint in `sandbar --help`."
	}
	if violations := apierr.BadRequest(err).GetFieldViolations(); len(violations) > 0 {
		message = "the server refuses the request:"
		for _, violation := range violations {
			details += "\n  " + violation.GetField() + ": " + violation.GetDescription()
		}
	}
	if message == "" {
		message = sent.Code().String()
	}
	if reason := apierr.ReasonOf(err); reason != "" {
		details += "\n  (" + string(reason) + ")"
	}
	// Around it stands what our own code has to say, such as which of several
	// sandboxes it is about.
	return strings.Replace(err.Error(), sent.Error(), message, 1) + details
}
