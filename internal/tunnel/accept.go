package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// Conn is the gateway's end of a tunnel: an http.RoundTripper whose requests
// go to the runner's handler. The scheme and host of their URLs do not matter;
// use http. Safe for concurrent use.
type Conn struct {
	client *http.ClientConn
	conn   *upgradedConn
}

// RoundTrip sends a request through the tunnel. Ending the request's context
// resets its stream.
func (c *Conn) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.Body != http.NoBody {
		req = req.Clone(req.Context())
		req.Body = newCancelledBody(req.Context(), req.Body)
	}
	return c.client.RoundTrip(req)
}

// cancelledBody is a request body that closes when the request's context ends.
// HTTP/2 does not look at the context while it waits for more of a body whose
// response has begun, as that of a bidirectional stream.
type cancelledBody struct {
	io.ReadCloser
	stop func() bool
}

func newCancelledBody(ctx context.Context, body io.ReadCloser) *cancelledBody {
	return &cancelledBody{
		ReadCloser: body,
		stop:       context.AfterFunc(ctx, func() { _ = body.Close() }),
	}
}

func (b *cancelledBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

// Usable says whether new requests can be sent: the connection is open and the
// runner has not announced that it is leaving. It means something once a first
// request has been answered.
func (c *Conn) Usable() bool {
	if c.client.Err() != nil {
		return false
	}
	// There is no room on a connection that the runner leaves, nor on a full
	// one, where requests wait for their turn.
	return c.client.Available() > 0 || c.client.InFlight() >= maxStreams
}

// Done is closed when the connection has ended, whoever ended it.
func (c *Conn) Done() <-chan struct{} { return c.conn.closed }

// Close ends the connection and every stream on it.
func (c *Conn) Close() error { return c.client.Close() }

// RemoteAddr is the runner's end of the connection.
func (c *Conn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// HandlerOptions are what Handler needs.
type HandlerOptions[Identity any] struct {
	// Authenticate says whose credential it is. An error that wraps
	// ErrUnauthorized refuses the runner for good; any other one asks it to come
	// back later.
	Authenticate func(ctx context.Context, credential string) (Identity, error)
	// Serve owns one connection, which is closed when it returns. The context
	// ends with the HTTP server's base context.
	Serve     func(ctx context.Context, identity Identity, conn *Conn)
	Keepalive Keepalive
	Logger    *slog.Logger
}

// Handler takes tunnels: it authenticates the upgrade request, takes over its
// connection and hands it to Serve. It needs a server that speaks HTTP/1.1 and
// answers 426 to anything else.
func Handler[Identity any](opts HandlerOptions[Identity]) http.Handler {
	keepalive := opts.Keepalive.withDefaults()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || !isUpgrade(r.Header) || r.ProtoMajor != 1 {
			w.Header().Set("Upgrade", Protocol)
			http.Error(w, "this address takes runner tunnels: HTTP/1.1 POST with Upgrade: "+Protocol, http.StatusUpgradeRequired)
			return
		}
		credential, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || credential == "" {
			refuse(w, http.StatusUnauthorized, "the request carries no runner credential")
			return
		}
		identity, err := opts.Authenticate(r.Context(), credential)
		switch {
		case errors.Is(err, ErrUnauthorized):
			refuse(w, http.StatusUnauthorized, ErrUnauthorized.Error())
			return
		case err != nil:
			opts.Logger.WarnContext(r.Context(), "authenticate a tunnel", "error", err)
			refuse(w, http.StatusServiceUnavailable, "the server cannot check the credential now; try again")
			return
		}
		conn, err := accept(w, r, keepalive)
		if err != nil {
			opts.Logger.WarnContext(r.Context(), "accept a tunnel", "remote", r.RemoteAddr, "error", err)
			return
		}
		defer func() {
			_ = conn.Close() // says only that it had been closed before
		}()
		opts.Serve(r.Context(), identity, conn)
	})
}

// accept takes the connection over from HTTP/1.1 and starts HTTP/2 on it.
func accept(w http.ResponseWriter, r *http.Request, keepalive Keepalive) (*Conn, error) {
	raw, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, "the connection cannot be taken over")
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	conn := newUpgradedConn(raw, buffer.Reader)
	client, err := switchProtocols(r.Context(), conn, keepalive)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Conn{client: client, conn: conn}, nil
}

func switchProtocols(ctx context.Context, conn *upgradedConn, keepalive Keepalive) (*http.ClientConn, error) {
	// The HTTP server's own deadlines end here.
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("reset the deadline: %w", err)
	}
	const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"
	if _, err := conn.Write([]byte(answer)); err != nil {
		return nil, fmt.Errorf("answer the upgrade: %w", err)
	}
	transport := &http.Transport{
		// A transport makes its connections itself; this one has but one to give.
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableCompression: true,
		Protocols:          http2Only(),
		HTTP2:              http2Config(keepalive),
	}
	client, err := transport.NewClientConn(ctx, "http", "runner:80")
	if err != nil {
		return nil, fmt.Errorf("start HTTP/2: %w", err)
	}
	return client, nil
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Connection", "close")
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, message, status)
}

func isUpgrade(header http.Header) bool {
	return strings.EqualFold(header.Get("Upgrade"), Protocol) &&
		strings.Contains(strings.ToLower(header.Get("Connection")), "upgrade")
}
