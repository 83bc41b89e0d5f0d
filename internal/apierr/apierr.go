// Package apierr is the one table of what can go wrong: it maps each reason to
// its gRPC code, HTTP status and CLI exit code, and builds errors that carry
// google.rpc details (AIP-193).
//
// Every error that leaves the server is made here, so that a client can rely
// on the reason and a person on the message: what was wrong, where, what was
// expected, and what to do.
package apierr

//go:generate go test -run TestErrorsPageIsFresh -update

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain; clients map reasons of no other.
const Domain = "cwsandbox.com"

// Violation is one thing wrong with one field of a request.
type Violation struct {
	// Field is the path in proto spelling: "spec.containers[0].image".
	Field string
	// Description says what is wrong, what was expected, and what to do.
	Description string
	// Reason names the rule, in UPPER_SNAKE_CASE; may be empty.
	Reason string
}

// Error is an error with a reason. The zero value is not useful; use New.
type Error struct {
	reason     Reason
	message    string
	metadata   map[string]string
	violations []Violation
	retryAfter time.Duration
	cause      error
}

// New makes an error of that reason. What %q quotes of strings is cut to a
// bounded length, and so is the whole.
func New(reason Reason, format string, args ...any) *Error {
	return &Error{reason: reason, message: elide(sprintf(format, args...), maxMessage)}
}

// Invalid makes one error of all the violations, in their order. It answers
// nil when there are none. Texts that are too long are cut on their way to the
// client, and of very many violations the last are only counted there.
func Invalid(reason Reason, violations []Violation) error {
	if len(violations) == 0 {
		return nil
	}
	told, left := boundViolations(violations)
	return &Error{reason: reason, message: summarize(told, left), violations: violations}
}

// With adds a metadata entry and returns the same error.
func (e *Error) With(key, value string) *Error {
	if e.metadata == nil {
		e.metadata = map[string]string{}
	}
	e.metadata[key] = elide(value, maxMetadata)
	return e
}

// RetryAfter says when trying again makes sense, and returns the same error.
func (e *Error) RetryAfter(d time.Duration) *Error {
	e.retryAfter = d
	return e
}

// Because records the cause, for logs and errors.Is; it never reaches the
// client. It returns the same error.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Error is the message alone.
func (e *Error) Error() string { return e.message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Reason is the row of the table.
func (e *Error) Reason() Reason { return e.reason }

// Violations are what Invalid was given.
func (e *Error) Violations() []Violation { return e.violations }

// Connect turns any error into a *connect.Error, which is sent with its
// details, and nil into nil. An error without a reason becomes INTERNAL and its
// text stays on the server. What is a connect error already passes; one without
// a reason of ours is of the RPC library's making and gets that of its code.
func Connect(err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own.connect()
	}
	var sent *connect.Error
	if errors.As(err, &sent) {
		return withReason(sent)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return New(Cancelled, "the call was cancelled").Because(err).connect()
	case errors.Is(err, context.DeadlineExceeded):
		return New(DeadlineExceeded, "the call's deadline has passed").Because(err).connect()
	}
	return New(Internal, "internal error; the server's log has the details").Because(err).connect()
}

// withReason is the error with the reason of its code when it has none.
func withReason(sent *connect.Error) *connect.Error {
	reason, known := codeReasons[sent.Code()]
	if !known || Info(sent) != nil {
		return sent
	}
	out := connect.NewError(sent.Code(), errors.New(elide(sent.Message(), maxMessage)))
	for key, values := range sent.Meta() {
		out.Meta()[key] = values
	}
	addDetail(out, &errdetails.ErrorInfo{Reason: string(reason), Domain: Domain})
	for _, detail := range sent.Details() {
		out.AddDetail(detail)
	}
	return out
}

func (e *Error) connect() *connect.Error {
	row := table[e.reason]
	out := connect.NewError(row.code, e)
	info := &errdetails.ErrorInfo{Reason: string(e.reason), Domain: Domain, Metadata: e.metadata}
	addDetail(out, info)
	if len(e.violations) > 0 {
		bad := &errdetails.BadRequest{}
		told, _ := boundViolations(e.violations)
		for _, v := range told {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: v.Field, Description: v.Description, Reason: v.Reason,
			})
		}
		addDetail(out, bad)
	}
	if e.retryAfter > 0 {
		addDetail(out, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retryAfter)})
	}
	return out
}

func addDetail(err *connect.Error, message proto.Message) {
	// NewErrorDetail fails only for messages that cannot be marshalled, which
	// the generated ones above are not.
	if detail, e := connect.NewErrorDetail(message); e == nil {
		err.AddDetail(detail)
	}
}

// ReasonOf finds the reason of an error, whether it was made here or came over
// the wire; empty when it has none of ours.
func ReasonOf(err error) Reason {
	var own *Error
	if errors.As(err, &own) {
		return own.reason
	}
	if info := Info(err); info != nil {
		return Reason(info.GetReason())
	}
	return ""
}

// Info finds our ErrorInfo in an error that came over the wire; nil when it
// has none.
func Info(err error) *errdetails.ErrorInfo {
	return find(err, func(info *errdetails.ErrorInfo) bool { return info.GetDomain() == Domain })
}

// BadRequest finds the field violations of an error that came over the wire;
// nil when it has none.
func BadRequest(err error) *errdetails.BadRequest {
	return find(err, func(*errdetails.BadRequest) bool { return true })
}

func find[M proto.Message](err error, accept func(M) bool) M {
	var none M
	var sent *connect.Error
	if !errors.As(err, &sent) {
		return none
	}
	for _, detail := range sent.Details() {
		value, e := detail.Value()
		if e != nil {
			continue
		}
		if message, ok := value.(M); ok && accept(message) {
			return message
		}
	}
	return none
}
