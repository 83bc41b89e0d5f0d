package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// errorInterceptor gives every error of a handler its reason and details, and
// logs what the caller is not told.
type errorInterceptor struct{ logger *slog.Logger }

// WrapUnary implements connect.Interceptor.
func (e *errorInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, req)
		if err != nil {
			return nil, e.translate(ctx, req.Spec().Procedure, err)
		}
		return response, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (e *errorInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (e *errorInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := next(ctx, conn); err != nil {
			return e.translate(ctx, conn.Spec().Procedure, err)
		}
		return nil
	}
}

func (e *errorInterceptor) translate(ctx context.Context, procedure string, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errStopping):
		err = apierr.New(apierr.BackendUnavailable, "the server is stopping; try again").Because(err)
	case connect.CodeOf(err) == connect.CodeUnimplemented && apierr.ReasonOf(err) == "":
		err = apierr.New(apierr.NotImplemented, "%s is not built yet", procedure)
	}
	sent := apierr.Connect(err)
	code := connect.CodeOf(sent)
	if entry := accessFrom(ctx); entry != nil {
		entry.code, entry.reason = code, apierr.ReasonOf(err)
		if entry.reason == "" {
			entry.reason = apierr.ReasonOf(sent)
		}
	}
	if code == connect.CodeInternal {
		e.logger.ErrorContext(ctx, "request failed", "procedure", procedure, "error", causes(err))
	}
	return sent
}

// causes tells what Because has recorded too, which the message leaves out.
func causes(err error) string {
	text := err.Error()
	if cause := errors.Unwrap(err); cause != nil {
		text += ": " + cause.Error()
	}
	return text
}

// recovered turns a panic of a handler into INTERNAL.
func recovered(logger *slog.Logger) func(context.Context, connect.Spec, http.Header, any) error {
	return func(ctx context.Context, spec connect.Spec, _ http.Header, failure any) error {
		logger.ErrorContext(ctx, "handler panicked", "procedure", spec.Procedure, "panic", failure, "stack", string(debug.Stack()))
		return apierr.New(apierr.Internal, "internal error; the server's log has the details")
	}
}

// writeStatus answers a request that is no RPC with the google.rpc.Status of an
// error, which must not be nil.
func writeStatus(w http.ResponseWriter, err error) {
	sent, _ := errors.AsType[*connect.Error](apierr.Connect(err)) // always is one
	body := &status.Status{Code: int32(sent.Code()), Message: sent.Message()}
	for _, detail := range sent.Details() {
		body.Details = append(body.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + detail.Type(), Value: detail.Bytes()})
	}
	data, failure := protojson.Marshal(body)
	if failure != nil {
		data = []byte(`{"code":13,"message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus(sent.Code()))
	// The body is lost only with the connection.
	_, _ = w.Write(data)
}

// httpStatus is google.rpc.Code's mapping to HTTP.
func httpStatus(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAborted, connect.CodeAlreadyExists:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeCanceled:
		return 499
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
	}
	return http.StatusInternalServerError
}

// notFound answers for paths that nothing serves.
func notFound(w http.ResponseWriter, r *http.Request) {
	body := &status.Status{Code: int32(connect.CodeNotFound), Message: fmt.Sprintf("nothing is served at %s", r.URL.Path)}
	data, err := protojson.Marshal(body)
	if err != nil {
		data = nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write(data)
}
