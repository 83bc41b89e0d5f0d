package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// rest serves REST by transcoding it to the handlers of the services.
//
// What the library leaves to be wished is done around it. The query is read
// here, because the library answers for an unknown parameter as for an error of
// the server, and takes masks in one spelling only. And every error that it
// makes gets a reason.
type rest struct {
	transcoder http.Handler
	errors     *rpcErrors
	logger     *slog.Logger
}

func newREST(services []*vanguard.Service, errors *rpcErrors, logger *slog.Logger) (*rest, error) {
	transcoder, err := vanguard.NewTranscoder(services,
		vanguard.WithUnknownHandler(http.HandlerFunc(errors.notFound)),
		vanguard.WithDefaultServiceOptions(
			vanguard.WithTargetProtocols(vanguard.ProtocolConnect),
			vanguard.WithTargetCodecs(vanguard.CodecProto),
			vanguard.WithNoTargetCompression(),
			vanguard.WithMaxMessageBufferBytes(uint32(errors.limit)),
		),
		vanguard.WithCodec(restCodec),
	)
	if err != nil {
		return nil, fmt.Errorf("set up REST: %w", err)
	}
	return &rest{transcoder: transcoder, errors: errors, logger: logger}, nil
}

// unreadable says whether no text of the API can be that.
func unreadable(text string) bool { return !utf8.ValidString(text) || strings.ContainsRune(text, 0) }

// ServeHTTP implements http.Handler.
func (s *rest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeStatus(w, r, apierr.New(apierr.InvalidRequest, "the query %q cannot be read; encode what is special in it as %%XX", r.URL.RawQuery))
		return
	}
	if unreadable(r.URL.Path) || slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(query))...), unreadable) {
		writeStatus(w, r, apierr.New(apierr.InvalidRequest, "the path or the query has a NUL character or is not UTF-8; nothing has such a name"))
		return
	}
	if r.ContentLength > int64(s.errors.limit) {
		writeStatus(w, r, s.errors.limit.exceeded())
		return
	}
	call := &restCall{
		query: query,
		body:  restBody{ReadCloser: r.Body, limit: s.errors.limit, sent: r},
		reply: restReply{ResponseWriter: w},
	}
	inner := r.Clone(context.WithValue(r.Context(), restCallKey{}, call))
	inner.URL.RawQuery = ""
	inner.Body = &call.body
	s.transcoder.ServeHTTP(&call.reply, inner)
	s.finish(w, r, &call.reply)
}

// finish answers with the error that was held back, if there is one.
func (s *rest) finish(w http.ResponseWriter, r *http.Request, reply *restReply) {
	switch reply.status {
	case 0:
	case http.StatusMethodNotAllowed:
		writeStatus(w, r, notAllowed(r, reply.Header().Get("Allow")))
	case http.StatusUnsupportedMediaType:
		writeStatus(w, r, notUnderstood(r, "application/json"))
	default:
		writeStatus(w, r, s.failure(r, reply))
	}
}

// failure is the error of an answer.
func (s *rest) failure(r *http.Request, reply *restReply) error {
	body := &status.Status{}
	if err := protojson.Unmarshal(reply.body.Bytes(), body); err != nil || body.GetCode() == 0 {
		if reply.status == http.StatusBadRequest {
			return apierr.New(apierr.InvalidRequest, "%s", strings.TrimSpace(reply.body.String()))
		}
		s.logger.ErrorContext(r.Context(), "the REST library has answered with an error", "path", r.URL.Path, "status", reply.status, "error", reply.body.String())
		return apierr.New(apierr.Internal, "internal error; the server's log has the details")
	}
	sent := connect.NewError(connect.Code(body.GetCode()), errors.New(body.GetMessage()))
	for _, detail := range body.GetDetails() {
		message, err := detail.UnmarshalNew()
		if err != nil {
			continue // of a type that this program does not have
		}
		if d, err := connect.NewErrorDetail(message); err == nil {
			sent.AddDetail(d)
		}
	}
	if code := sent.Code(); apierr.ReasonOf(sent) == "" && (code == connect.CodeUnknown || code == connect.CodeInternal) {
		s.logger.ErrorContext(r.Context(), "the REST library has answered with an error", "path", r.URL.Path, "code", code, "error", sent.Message())
		return apierr.New(apierr.Internal, "internal error; the server's log has the details").Because(sent)
	}
	return s.errors.limit.explained(sent)
}

// restCodec is the JSON of REST. It writes only what is present, so that
// absent and empty stay apart, and refuses fields that the contract does not
// have: a rule that is misspelt must not be a rule that is missing.
func restCodec(resolver vanguard.TypeResolver) vanguard.Codec {
	return &strictJSON{JSONCodec: &vanguard.JSONCodec{
		MarshalOptions:   protojson.MarshalOptions{Resolver: resolver},
		UnmarshalOptions: protojson.UnmarshalOptions{Resolver: resolver},
	}}
}

// strictJSON tells the caller what is wrong with a body, where the codec it
// embeds would have it be an error of the server.
type strictJSON struct{ *vanguard.JSONCodec }

// Unmarshal implements vanguard.Codec.
func (c *strictJSON) Unmarshal(data []byte, message proto.Message) error {
	return badBody(c.JSONCodec.Unmarshal(data, message))
}

// UnmarshalField implements vanguard.RESTCodec.
func (c *strictJSON) UnmarshalField(data []byte, message proto.Message, field protoreflect.FieldDescriptor) error {
	return badBody(c.JSONCodec.UnmarshalField(data, message, field))
}

func badBody(err error) error {
	if err == nil {
		return nil
	}
	return apierr.Connect(apierr.New(apierr.InvalidRequest, "the body is not the JSON that is expected here: %v", err))
}
