package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

const (
	grpcStatus  = "Grpc-Status"
	grpcMessage = "Grpc-Message"
	grpcDetails = "Grpc-Status-Details-Bin"
)

// rpcErrors stands before the handlers of a service and gives a reason to the
// errors that the RPC library makes itself: what cannot be decoded, is too
// large, is sent in a way that is not understood, or calls a method that the
// service does not have. No interceptor sees these.
type rpcErrors struct {
	writer *connect.ErrorWriter
	limit  messageLimit
}

func newRPCErrors(limit messageLimit) *rpcErrors {
	return &rpcErrors{writer: connect.NewErrorWriter(), limit: limit}
}

// wrap is the handler with its errors so.
func (e *rpcErrors) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply := &rpcReply{ResponseWriter: w, request: r, errors: e}
		next.ServeHTTP(reply, r)
		reply.finish()
	})
}

// write answers in the protocol of the request.
func (e *rpcErrors) write(w http.ResponseWriter, r *http.Request, err error) {
	note(r.Context(), err)
	// The error is lost only with the connection.
	_ = e.writer.Write(w, r, apierr.Connect(err))
}

// messageLimit is how many bytes one message may have.
type messageLimit int

// explained is an error that the RPC library has made, with a reason. Of
// exhausted resources the library knows only the size of a message.
func (l messageLimit) explained(sent error) error {
	if connect.CodeOf(sent) == connect.CodeResourceExhausted && apierr.ReasonOf(sent) == "" {
		return apierr.Connect(l.exceeded().Because(sent))
	}
	return apierr.Connect(sent)
}

// exceeded has words in it that tell clients to stream a file instead.
func (l messageLimit) exceeded() *apierr.Error {
	return apierr.New(apierr.RequestTooLarge,
		"the request message is larger than max %d bytes; send less in one call, and large files through StreamExec", l)
}

// rpcReply lets an answer through as it is, but for an error without a reason.
type rpcReply struct {
	http.ResponseWriter

	request *http.Request
	errors  *rpcErrors
	begun   bool
	// status and body are of an answer that is held back: it is an error in
	// terms of HTTP.
	status int
	body   bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (r *rpcReply) WriteHeader(status int) {
	switch {
	case r.begun || r.status != 0:
		return
	case status >= http.StatusBadRequest:
		r.status = status
		return
	case status >= http.StatusOK:
		r.begin()
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *rpcReply) Write(data []byte) (int, error) {
	if r.status != 0 {
		return r.body.Write(data)
	}
	r.begin()
	return r.ResponseWriter.Write(data)
}

// Flush implements http.Flusher.
func (r *rpcReply) Flush() {
	if r.status != 0 {
		return
	}
	r.begin()
	// A connection that cannot flush has ended.
	_ = http.NewResponseController(r.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController find the rest.
func (r *rpcReply) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// begin is called before the head goes out, in which gRPC-Web has the status of
// a call that has answered nothing.
func (r *rpcReply) begin() {
	if r.begun {
		return
	}
	r.begun = true
	r.reasonInHeader("")
}

// finish is called when the handler has returned.
func (r *rpcReply) finish() {
	if r.status != 0 {
		r.answer()
		return
	}
	r.begin()
	// gRPC has the status in the trailers, which net/http takes from here.
	r.reasonInHeader(http.TrailerPrefix)
}

// reasonInHeader gives a gRPC status without details a reason.
func (r *rpcReply) reasonInHeader(prefix string) {
	header := r.Header()
	status := header.Get(prefix + grpcStatus)
	if status == "" || status == "0" || header.Get(prefix+grpcDetails) != "" {
		return
	}
	code, err := strconv.ParseUint(status, 10, 32)
	if err != nil {
		return
	}
	text := header.Get(prefix + grpcMessage)
	if decoded, err := url.PathUnescape(text); err == nil {
		text = decoded
	}
	err = r.errors.limit.explained(connect.NewError(connect.Code(code), errors.New(text)))
	note(r.request.Context(), err)
	// The writer makes the encoded form; it is put where this answer has it.
	encoded := headerOnly{}
	_ = r.errors.writer.Write(encoded, r.request, err)
	for _, key := range []string{grpcStatus, grpcMessage, grpcDetails} {
		header.Set(prefix+key, http.Header(encoded).Get(key))
	}
}

// answer makes an error of the answer that was held back.
func (r *rpcReply) answer() {
	header := r.Header()
	switch r.status {
	case http.StatusNotFound:
		if r.body.Len() == 0 || !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			r.errors.write(r.ResponseWriter, r.request, apierr.New(apierr.MethodNotFound, "there is no method %q", r.request.URL.Path))
			return
		}
	case http.StatusMethodNotAllowed:
		writeStatus(r.ResponseWriter, r.request, notAllowed(r.request, header.Get("Allow")))
		return
	case http.StatusUnsupportedMediaType:
		writeStatus(r.ResponseWriter, r.request, notUnderstood(r.request, "application/proto, application/json, application/grpc, application/grpc-web or application/connect+proto"))
		return
	case http.StatusHTTPVersionNotSupported:
		writeStatus(r.ResponseWriter, r.request, apierr.New(apierr.HTTPVersionNotSupported,
			"%s streams in both directions, which needs HTTP/2; the request came over %s", r.request.URL.Path, r.request.Proto))
		return
	}
	var sent struct {
		Code    connect.Code `json:"code"`
		Message string       `json:"message"`
		Details []struct{ Type string }
	}
	if err := json.Unmarshal(r.body.Bytes(), &sent); err == nil && len(sent.Details) == 0 {
		header.Del("Content-Length")
		r.errors.write(r.ResponseWriter, r.request, r.errors.limit.explained(connect.NewError(sent.Code, errors.New(sent.Message))))
		return
	}
	r.ResponseWriter.WriteHeader(r.status)
	// The body is lost only with the connection.
	_, _ = r.ResponseWriter.Write(r.body.Bytes())
}

// headerOnly is where an answer's head is written to be looked at.
type headerOnly http.Header

// Header implements http.ResponseWriter.
func (h headerOnly) Header() http.Header { return http.Header(h) }

// Write implements http.ResponseWriter.
func (h headerOnly) Write(data []byte) (int, error) { return len(data), nil }

// WriteHeader implements http.ResponseWriter.
func (h headerOnly) WriteHeader(int) {}
