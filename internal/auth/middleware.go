package auth

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// apiKeyHeader carries the key of clients that send no Authorization header.
const apiKeyHeader = "X-Wandb-Api-Key"

// Middleware lets a request through to an RPC handler when its token is good
// for the procedure, which is the path. The handler finds the Principal in its
// context. It stands before the handler and not among its interceptors, so
// that nothing of a stranger's request is read but its head.
func Middleware(tokens *Tokens, next http.Handler) http.Handler {
	writer := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		principal, err := authorize(r.Context(), tokens, r.URL.Path, r.Header)
		if err != nil {
			// The error is lost only with the connection.
			_ = writer.Write(w, r, apierr.Connect(err))
			return
		}
		principal.SourceAddress, principal.Client = sourceAddress(r.RemoteAddr), client(r.UserAgent())
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), principal)))
	})
}

// sourceAddress is the address without its port; empty for what is none.
func sourceAddress(remote string) string {
	addressPort, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ""
	}
	return addressPort.Addr().Unmap().WithZone("").String()
}

// client is what is kept of a User-Agent, which may say anything.
func client(userAgent string) string {
	const maxBytes = 256
	clean := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(userAgent, ""))
	for len(clean) > maxBytes {
		_, size := utf8.DecodeLastRuneInString(clean)
		clean = clean[:len(clean)-size]
	}
	return clean
}

func authorize(ctx context.Context, tokens *Tokens, procedure string, header http.Header) (Principal, error) {
	secret, err := secretFrom(header)
	if err != nil {
		return Principal{}, err
	}
	principal, err := tokens.Authenticate(ctx, secret)
	if err != nil {
		return Principal{}, err
	}
	required, known := RequiredRole(procedure)
	if !known {
		return Principal{}, apierr.New(apierr.PermissionDenied, "no role allows %s", procedure)
	}
	if principal.Role < required {
		return Principal{}, apierr.New(apierr.PermissionDenied, "this needs the role %s, and the token has %s; use an administrator's token", required, principal.Role).
			With("required_role", required.String())
	}
	return principal, nil
}

// secretFrom takes the token out of the request's head.
func secretFrom(header http.Header) (Secret, error) {
	authorization := header.Get("Authorization")
	if authorization == "" {
		if key := header.Get(apiKeyHeader); key != "" {
			return Secret(strings.TrimSpace(key)), nil
		}
		return "", apierr.New(apierr.Unauthenticated, "the request carries no token; send it as \"Authorization: Bearer CW-SECRET-…\"")
	}
	scheme, token, found := strings.Cut(authorization, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || strings.TrimSpace(token) == "" {
		return "", apierr.New(apierr.Unauthenticated, "the Authorization header is not of the form \"Bearer CW-SECRET-…\"")
	}
	return Secret(strings.TrimSpace(token)), nil
}
