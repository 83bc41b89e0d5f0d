// Package fieldrules checks messages against the rules that the proto files
// carry (protovalidate), and tells what breaks them as the API does.
package fieldrules

import (
	"context"
	"errors"
	"fmt"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Check lists every rule that the message breaks.
func Check(validator protovalidate.Validator, message proto.Message) ([]apierr.Violation, error) {
	err := validator.Validate(message)
	if err == nil {
		return nil, nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		return nil, fmt.Errorf("check %s: %w", message.ProtoReflect().Descriptor().FullName(), err)
	}
	violations := make([]apierr.Violation, len(invalid.Violations))
	for i, violation := range invalid.Violations {
		violations[i] = apierr.Violation{
			Field:       protovalidate.FieldPathString(violation.Proto.GetField()),
			Description: violation.Proto.GetMessage(),
			Reason:      "FIELD_RULE",
		}
	}
	return violations, nil
}

// Interceptor checks the requests of handlers before they see them, but for
// the procedures named: those check the rules together with their own, so that
// the caller hears of everything at once.
func Interceptor(validator protovalidate.Validator, except ...string) connect.Interceptor {
	skip := map[string]bool{}
	for _, procedure := range except {
		skip[procedure] = true
	}
	return &interceptor{validator: validator, skip: skip}
}

type interceptor struct {
	validator protovalidate.Validator
	skip      map[string]bool
}

// WrapUnary implements connect.Interceptor.
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if !req.Spec().IsClient && !i.skip[req.Spec().Procedure] {
			if err := i.check(req.Any()); err != nil {
				return nil, err
			}
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(ctx, &checkedConn{StreamingHandlerConn: conn, check: i.check})
	}
}

func (i *interceptor) check(message any) error {
	typed, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	violations, err := Check(i.validator, typed)
	if err != nil {
		return err
	}
	return apierr.Invalid(apierr.InvalidRequest, violations)
}

// checkedConn checks each message as it arrives.
type checkedConn struct {
	connect.StreamingHandlerConn

	check func(any) error
}

// Receive implements connect.StreamingHandlerConn.
func (c *checkedConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	return c.check(message)
}
