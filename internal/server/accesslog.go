package server

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"

	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
)

// access is what the log line of one request says beside its head. Handlers
// fill it in; it is one goroutine's until the request is over.
type access struct {
	principal auth.Principal
	// code and reason are of an RPC that failed.
	code   connect.Code
	reason apierr.Reason
}

type accessKey struct{}

func accessFrom(ctx context.Context) *access {
	entry, _ := ctx.Value(accessKey{}).(*access)
	return entry
}

// logged writes one line a request, and survives panics. Neither headers nor
// queries are logged: they may hold secrets.
func logged(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		entry := &access{}
		recorder := &statusRecorder{ResponseWriter: w}
		defer func() {
			if failure := recover(); failure != nil {
				if failure == http.ErrAbortHandler { //nolint:errorlint // The value itself is what net/http documents.
					panic(failure)
				}
				logger.ErrorContext(r.Context(), "handler panicked", "path", r.URL.Path, "panic", failure, "stack", string(debug.Stack()))
				if recorder.status == 0 {
					writeStatus(recorder, r, apierr.New(apierr.Internal, "internal error; the server's log has the details"))
				}
			}
			attributes := []slog.Attr{
				slog.String("method", r.Method),
				slog.String("path", r.URL.Path),
				slog.String("protocol", r.Proto),
				slog.Int("status", recorder.status),
				slog.Duration("duration", time.Since(start)),
				slog.String("peer", r.RemoteAddr),
			}
			if entry.principal.TokenID != "" {
				attributes = append(attributes, slog.String("org_id", entry.principal.OrganizationID),
					slog.String("user_id", entry.principal.UserID), slog.String("token_id", entry.principal.TokenID))
			}
			if entry.code != 0 {
				attributes = append(attributes, slog.String("code", entry.code.String()), slog.String("reason", string(entry.reason)))
			}
			level := slog.LevelInfo
			if r.URL.Path == healthPath || r.URL.Path == readyPath {
				level = slog.LevelDebug
			}
			logger.LogAttrs(r.Context(), level, "request", attributes...)
		}()
		next.ServeHTTP(recorder, r.WithContext(context.WithValue(r.Context(), accessKey{}, entry)))
	})
}

// attributed tells the access log who is calling.
func attributed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if entry := accessFrom(r.Context()); entry != nil {
			entry.principal, _ = auth.PrincipalFrom(r.Context())
		}
		next.ServeHTTP(w, r)
	})
}

// statusRecorder remembers the status, and passes on what streams and upgrades
// need.
type statusRecorder struct {
	http.ResponseWriter

	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusRecorder) WriteHeader(status int) {
	if s.status == 0 || s.status/100 == 1 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *statusRecorder) Write(data []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(data)
}

// Flush implements http.Flusher.
func (s *statusRecorder) Flush() {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	// A connection that cannot flush has ended.
	_ = http.NewResponseController(s.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker.
func (s *statusRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	s.status = http.StatusSwitchingProtocols
	return http.NewResponseController(s.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController find the rest.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }
