package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// restCall is what the two ends of a transcoded request know of it.
type restCall struct {
	query url.Values
	body  restBody
	reply restReply
}

type restCallKey struct{}

// restBody is the body of a REST request, within its limit.
type restBody struct {
	io.ReadCloser

	sent  *http.Request
	limit messageLimit
	read  int64
	// refused: the method takes none.
	refused bool
}

// Read implements io.Reader.
func (b *restBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	if b.read += int64(n); b.read > int64(b.limit) {
		return 0, apierr.Connect(b.limit.exceeded())
	}
	if n > 0 && b.refused {
		return 0, apierr.Connect(apierr.New(apierr.InvalidRequest, "%s %q takes no body; send parameters in the query", b.sent.Method, b.sent.URL.Path))
	}
	return n, err
}

// restReply holds an error back, which then goes out with its reason.
type restReply struct {
	http.ResponseWriter

	status int
	body   bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (r *restReply) WriteHeader(status int) {
	switch {
	case r.status != 0:
	case status >= http.StatusBadRequest:
		r.status = status
	default:
		r.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (r *restReply) Write(data []byte) (int, error) {
	if r.status != 0 {
		return r.body.Write(data)
	}
	return r.ResponseWriter.Write(data)
}

// Flush implements http.Flusher.
func (r *restReply) Flush() {
	if r.status == 0 {
		// A connection that cannot flush has ended.
		_ = http.NewResponseController(r.ResponseWriter).Flush()
	}
}

// withQuery adds to a transcoded request what stood in its query. Others pass
// as they are.
func withQuery(methods map[string]*binding, errs *rpcErrors, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, _ := r.Context().Value(restCallKey{}).(*restCall)
		b := methods[r.URL.Path]
		if call == nil || b == nil {
			next.ServeHTTP(w, r)
			return
		}
		request, err := queryMessage(b, call.query)
		if err != nil {
			errs.write(w, r, err)
			return
		}
		call.body.refused = b.rule.GetBody() == ""
		r.Body = &queriedBody{ReadCloser: r.Body, call: call, query: request}
		next.ServeHTTP(w, r)
	})
}

// queryMessage is the encoded request of what stands in the query.
func queryMessage(b *binding, query url.Values) ([]byte, error) {
	if len(query) == 0 {
		return nil, nil
	}
	typ, err := protoregistry.GlobalTypes.FindMessageByName(b.method.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("find the request of %s: %w", b.method.FullName(), err)
	}
	request := typ.New()
	if err := b.decode(query, request); err != nil {
		return nil, err
	}
	data, err := proto.Marshal(request.Interface())
	if err != nil {
		return nil, fmt.Errorf("encode the query: %w", err)
	}
	return data, nil
}

// queriedBody is a request whose path and body are followed by its query:
// encodings of messages, one after the other, are that of the merged message.
type queriedBody struct {
	io.ReadCloser

	call  *restCall
	query []byte
}

// Read implements io.Reader.
func (b *queriedBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if b.call.reply.status != 0 {
		// The library has refused the body, and shows the handler an empty one.
		return 0, io.ErrUnexpectedEOF
	}
	more := copy(data[n:], b.query)
	b.query = b.query[more:]
	if len(b.query) > 0 {
		return n + more, nil
	}
	return n + more, io.EOF
}
