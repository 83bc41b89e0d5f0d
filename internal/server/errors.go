package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// errorInterceptor gives every error of a handler its reason and details, and
// logs what the caller is not told.
type errorInterceptor struct {
	logger *slog.Logger
	limit  messageLimit
}

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
	sent := e.limit.explained(err)
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

// note tells the access log of an error that no interceptor has seen.
func note(ctx context.Context, err error) {
	if entry := accessFrom(ctx); entry != nil {
		sent := apierr.Connect(err)
		entry.code, entry.reason = connect.CodeOf(sent), apierr.ReasonOf(sent)
	}
}

// writeStatus answers a request that is no RPC with the google.rpc.Status of an
// error, which must not be nil.
func writeStatus(w http.ResponseWriter, r *http.Request, err error) {
	note(r.Context(), err)
	sent, _ := errors.AsType[*connect.Error](apierr.Connect(err)) // always is one
	body := &status.Status{Code: int32(sent.Code()), Message: sent.Message()}
	for _, detail := range sent.Details() {
		body.Details = append(body.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + detail.Type(), Value: detail.Bytes()})
	}
	data, failure := protojson.Marshal(body)
	if failure != nil {
		data = []byte(`{"code":13,"message":"internal error"}`)
	}
	w.Header().Del("Content-Length")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(apierr.ReasonOf(sent).HTTPStatus())
	// The body is lost only with the connection.
	_, _ = w.Write(data)
}

// notAllowed is for a path that other HTTP methods have.
func notAllowed(r *http.Request, allowed string) error {
	return apierr.New(apierr.MethodNotAllowed, "%s is not allowed at %q; allowed is %s", r.Method, r.URL.Path, strings.ReplaceAll(allowed, ",", ", "))
}

// notUnderstood is for a body of a media type that is not known.
func notUnderstood(r *http.Request, expected string) error {
	return apierr.New(apierr.UnsupportedMediaType, "the media type %q is not understood at %q; send %s", r.Header.Get("Content-Type"), r.URL.Path, expected)
}

// notFound answers for paths that nothing serves, in the protocol of the
// request.
func (e *rpcErrors) notFound(w http.ResponseWriter, r *http.Request) {
	if isRPC(r) {
		e.write(w, r, apierr.New(apierr.MethodNotFound, "there is no method %q", r.URL.Path))
		return
	}
	writeStatus(w, r, apierr.New(apierr.PathNotFound, "nothing is served at %q", r.URL.Path))
}

// isRPC says whether a request means a method of a service: by its media type,
// or by a path of the form /package.Service/Method.
func isRPC(r *http.Request) bool {
	media := r.Header.Get("Content-Type")
	if strings.HasPrefix(media, "application/grpc") || strings.HasPrefix(media, "application/connect+") {
		return true
	}
	service, method, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return r.Method == http.MethodPost && found && strings.Contains(service, ".") && !strings.Contains(method, "/")
}
