package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// platformError: the image is for other machines than this one.
type platformError struct{ offered string }

func (e *platformError) Error() string {
	return fmt.Sprintf("the image is for %s, and this machine is linux/%s", e.offered, runtime.GOARCH)
}

func (e *platformError) Unwrap() error { return engine.ErrImageInvalid }

// registryError says which of the engine's errors a registry's answer is.
func registryError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", registryErrorKind(err), err)
}

func registryErrorKind(err error) error {
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch {
		case answer.StatusCode == http.StatusNotFound:
			return engine.ErrImageNotFound
		case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
			return engine.ErrImageUnauthorized
		case answer.StatusCode == http.StatusTooManyRequests, answer.StatusCode >= http.StatusInternalServerError:
			return engine.ErrRegistryUnavailable
		}
		return engine.ErrImageInvalid
	}
	var network net.Error
	var request *url.Error
	if errors.As(err, &network) || errors.As(err, &request) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) {
		return engine.ErrRegistryUnavailable
	}
	return engine.ErrImageInvalid
}

// isOfRegistry tells what a place's answer caused from what this machine did.
func isOfRegistry(err error) bool {
	for _, kind := range []error{engine.ErrImageNotFound, engine.ErrImageUnauthorized, engine.ErrRegistryUnavailable, engine.ErrImageInvalid} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// attempt is what came of asking a place.
func (from source) attempt(err error) engine.PullAttempt {
	registry := from.reference.Context().Registry
	host := registry.RegistryStr()
	attempt := engine.PullAttempt{Address: registry.Scheme() + "://" + host, Mirror: from.mirror, Err: err}
	cause, hint := explainPull(err, host)
	attempt.Cause, attempt.Hint = oneLine(cause), hint
	return attempt
}

// explainPull says why, without the URLs of requests, which may carry
// credentials, and what to do about just that.
func explainPull(err error, host string) (cause, hint string) {
	var answer *transport.Error
	var platform *platformError
	switch {
	case errors.As(err, &platform):
		return platform.Error(), "use an image for linux/" + runtime.GOARCH
	case errors.As(err, &answer):
		return explainAnswer(answer, host)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "it had not answered when the pull was given up", ""
	}
	cause = err.Error()
	var request *url.Error
	if errors.As(err, &request) {
		cause = request.Err.Error()
	}
	return cause, connectionHint(err, host)
}

func explainAnswer(answer *transport.Error, host string) (cause, hint string) {
	cause = fmt.Sprintf("%d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	unknownRepository := false
	for i, diagnostic := range answer.Errors {
		separator := ": "
		if i > 0 {
			separator = ", "
		}
		cause += separator + string(diagnostic.Code)
		if diagnostic.Message != "" {
			cause += " (" + diagnostic.Message + ")"
		}
		unknownRepository = unknownRepository || diagnostic.Code == transport.NameUnknownErrorCode
	}
	switch {
	case answer.StatusCode == http.StatusNotFound && unknownRepository:
		hint = "check the name of the repository"
	case answer.StatusCode == http.StatusNotFound:
		hint = "check the name and the tag or digest"
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		hint = "log in to " + host + " on the runner's host, or check the name: some registries answer like this for repositories that do not exist"
	case answer.StatusCode == http.StatusTooManyRequests:
		hint = "the registry limits how often it is asked: try again later, or set up a mirror"
	case answer.StatusCode >= http.StatusInternalServerError:
		hint = "the registry has a problem of its own: try again later"
	}
	return cause, hint
}

// connectionHint is for a place that gave no answer.
func connectionHint(err error, host string) string {
	var lookup *net.DNSError
	var operation *net.OpError
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var network net.Error
	switch {
	case errors.As(err, &verification), errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.HostnameError)):
		return "the runner's host must trust the certificate of " + host
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return host + " does not speak TLS, and plain HTTP is only for registries that are listed as insecure or on loopback"
	case errors.As(err, &operation) && operation.Op == "proxyconnect":
		return "check the proxy that the runner's process is given"
	case errors.As(err, &lookup):
		return "check the registry's name in the reference, and that the runner's host can resolve it"
	case errors.Is(err, unix.ECONNREFUSED):
		return "check that the registry runs at this address"
	case errors.As(err, &network), errors.Is(err, unix.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "check that the runner's host can reach it, and try again"
	}
	return ""
}

// maxCauseBytes bounds what others say.
const maxCauseBytes = 300

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxCauseBytes {
		text = strings.ToValidUTF8(text[:maxCauseBytes], "") + "…"
	}
	return text
}
