package invocation

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// ExitError ends the process with a code and says nothing: what there was to
// say has been said.
type ExitError struct{ Code int }

// Error is part of error.
func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// UsageError is a call that makes no sense; nothing was sent.
type UsageError struct{ cause error }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error {
	return &UsageError{cause: fmt.Errorf(format, args...)}
}

// Error is part of error.
func (e *UsageError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.cause }

// AcceptedError is what failed after the server had accepted the request, so
// that to send it again is not the same as to send it once.
type AcceptedError struct{ cause error }

// Accepted makes an AcceptedError; nil of nil.
func Accepted(err error) error {
	if err == nil {
		return nil
	}
	return &AcceptedError{cause: err}
}

// Error is part of error.
func (e *AcceptedError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *AcceptedError) Unwrap() error { return e.cause }

// SandboxFailure ends commands that pass on the exit code of a process in a
// sandbox, when it is Sandbar that failed.
const SandboxFailure = 125

// passesCode marks the commands that end with a process's exit code.
const passesCode = "exit-code-of-process"

// PassesCode marks a command whose exit code is that of a process in a sandbox,
// so that failures of Sandbar's own end with SandboxFailure. A request that
// makes no sense or that the server refuses never ran anything, and ends as
// elsewhere.
func PassesCode(command *cobra.Command) *cobra.Command {
	if command.Annotations == nil {
		command.Annotations = map[string]string{}
	}
	command.Annotations[passesCode] = "true"
	return command
}

// ExitCode is what the process ends with when command answered err.
func ExitCode(command *cobra.Command, err error) int {
	if err == nil {
		return apierr.ExitOK
	}
	var exit ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	var usage *UsageError
	if errors.As(err, &usage) {
		return apierr.ExitUsage
	}
	if command != nil && command.Annotations[passesCode] != "" {
		var accepted *AcceptedError
		if errors.As(err, &accepted) || apierr.ReasonOf(err) == "" {
			return SandboxFailure
		}
	}
	return apierr.ExitCode(err)
}

// Args turns a violation of the rule into a UsageError that shows the usage
// line.
func Args(rule cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if err := rule(command, args); err != nil {
			return Usagef("%w\nUsage: %s", err, command.UseLine())
		}
		return nil
	}
}

// Group is the behaviour of a command that only holds others: help without
// arguments, an error that names the nearest command otherwise.
func Group(command *cobra.Command) *cobra.Command {
	command.SuggestionsMinimumDistance = 2
	command.Args = cobra.ArbitraryArgs
	command.RunE = func(command *cobra.Command, args []string) error {
		if len(args) == 0 {
			return command.Help()
		}
		hint := fmt.Sprintf("run `%s --help` to see the commands", command.CommandPath())
		if near := command.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean " + strings.Join(near, " or ") + "?"
		}
		return Usagef("%s has no command %q; %s", command.CommandPath(), args[0], hint)
	}
	return command
}
