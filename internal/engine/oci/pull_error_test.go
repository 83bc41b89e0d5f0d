package oci

import (
	"archive/tar"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/enginetest"
)

func TestPullErrorsSayWhatIsWrong(t *testing.T) {
	backend := enginetest.Registry(t)
	enginetest.Push(t, backend+"/a/b:1", enginetest.Image(t, []tar.Header{enginetest.File("f", "1")}))
	other, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "s390x", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	enginetest.Push(t, backend+"/other:1", other)
	enginetest.Push(t, backend+"/others:1", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}},
	}))
	secret, _ := front(t, backend, func(r *http.Request) int {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "right" {
			return http.StatusUnauthorized
		}
		return 0
	})
	busy, _ := front(t, backend, func(*http.Request) int { return http.StatusTooManyRequests })
	closed := closedPort(t)
	failing, _ := front(t, backend, func(*http.Request) int { return http.StatusBadGateway })
	mirrors := func(registry, mirror string) func(*Config) {
		return func(c *Config) { c.Mirrors = map[string][]string{registry: {mirror}} }
	}
	machine := "this machine is linux/" + runtime.GOARCH
	for name, test := range map[string]struct {
		request engine.PullRequest
		config  func(*Config)
		want    error
		// says is all that the message has to say, in this order.
		says []string
	}{
		"an unknown tag": {
			request: engine.PullRequest{Reference: backend + "/a/b:2"}, want: engine.ErrImageNotFound,
			says: []string{backend + "/a/b:2: registry http://" + backend + ": 404 Not Found: MANIFEST_UNKNOWN", "; check the name and the tag"},
		},
		"an unknown repository": {
			request: engine.PullRequest{Reference: backend + "/c:1"}, want: engine.ErrImageNotFound,
			says: []string{backend + "/c:1: registry http://" + backend + ": 404 Not Found: NAME_UNKNOWN", "; check the name of the repository"},
		},
		"no registry there": {
			request: engine.PullRequest{Reference: closed + "/a:1"}, want: engine.ErrRegistryUnavailable,
			says: []string{closed + "/a:1: registry http://" + closed + ": dial tcp " + closed + ": connect: connection refused; check that the registry runs at this address"},
		},
		"neither a mirror nor a registry there": {
			request: engine.PullRequest{Reference: closed + "/a:1"}, config: mirrors(closed, "http://"+closed), want: engine.ErrRegistryUnavailable,
			says: []string{closed + "/a:1: mirror http://" + closed + ": dial tcp", "refused; registry http://" + closed + ": dial tcp", "refused; check that"},
		},
		"a mirror that lacks it and no registry there": {
			request: engine.PullRequest{Reference: closed + "/a/b:2"}, config: mirrors(closed, "http://"+backend), want: engine.ErrImageNotFound,
			says: []string{"mirror http://" + backend + ": 404 Not Found: MANIFEST_UNKNOWN", "; registry http://" + closed, "refused; check the name and the tag"},
		},
		"no mirror there and a registry that lacks it": {
			request: engine.PullRequest{Reference: backend + "/a/b:2"}, config: mirrors(backend, "http://"+closed), want: engine.ErrImageNotFound,
			says: []string{"mirror http://" + closed, "refused; registry http://" + backend + ": 404 Not Found", "; check the name and the tag"},
		},
		"a registry that refuses work": {
			request: engine.PullRequest{Reference: busy + "/a:1"}, want: engine.ErrRegistryUnavailable,
			says: []string{"registry http://" + busy + ": 429 Too Many Requests", "; the registry limits how often it is asked"},
		},
		"a registry that is broken": {
			request: engine.PullRequest{Reference: failing + "/a:1"}, want: engine.ErrRegistryUnavailable,
			says: []string{"registry http://" + failing + ": 502 Bad Gateway", "; the registry has a problem of its own"},
		},
		"no credentials": {
			request: engine.PullRequest{Reference: secret + "/a/b:1"}, want: engine.ErrImageUnauthorized,
			says: []string{"registry http://" + secret + ": 401 Unauthorized", "; log in to " + secret},
		},
		"wrong credentials": {
			request: engine.PullRequest{Reference: secret + "/a/b:1", Username: "user", Password: "wrong"}, want: engine.ErrImageUnauthorized,
			says: []string{"registry http://" + secret + ": 401 Unauthorized", "; log in to " + secret},
		},
		"right credentials": {request: engine.PullRequest{Reference: secret + "/a/b:1", Username: "user", Password: "right"}},
		"another platform": {
			request: engine.PullRequest{Reference: backend + "/other:1"}, want: engine.ErrImageInvalid,
			says: []string{"registry http://" + backend + ": the image is for linux/s390x, and " + machine, "; use an image for linux/" + runtime.GOARCH},
		},
		"other platforms": {
			request: engine.PullRequest{Reference: backend + "/others:1"}, want: engine.ErrImageInvalid,
			says: []string{"registry http://" + backend + ": the image is for linux/s390x, and " + machine},
		},
		"a reference that is none": {
			request: engine.PullRequest{Reference: "UPPER CASE"}, want: engine.ErrImageInvalid,
			says: []string{"UPPER CASE: ", "; write the reference like python:3.11"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, test.config)
			_, err := s.pull(t.Context(), test.request, nil)
			if !errors.Is(err, test.want) {
				t.Errorf("pull = %v; want %v", err, test.want)
			}
			if err != nil {
				saysInOrder(t, err.Error(), test.says)
			}
			checkNoWorkInProgress(t, s)
		})
	}
}

func TestACertificateThatNobodyTrustsIsNamed(t *testing.T) {
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	t.Cleanup(encrypted.Close)
	s := newTestStore(t, nil)
	// A name, because loopback addresses are asked without TLS, too.
	s.registry.transport = &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, encrypted.Listener.Addr().String())
		},
	}
	_, err := s.pull(t.Context(), engine.PullRequest{Reference: "registry.example/a:1"}, nil)
	if !errors.Is(err, engine.ErrRegistryUnavailable) {
		t.Fatalf("pull = %v; want ErrRegistryUnavailable", err)
	}
	saysInOrder(t, err.Error(), []string{
		"registry.example/a:1: registry https://registry.example: tls: failed to verify certificate: x509: ",
		"; the runner's host must trust the certificate of registry.example",
	})
}

func saysInOrder(t *testing.T, text string, parts []string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Errorf("%q lacks %q, in this place", text, part)
			return
		}
		rest = after
	}
	if strings.Contains(text, "wrong") || strings.Contains(text, "\n") {
		t.Errorf("%q has a password or several lines", text)
	}
}

// TestEveryFailureToConnectHasAHintOfItsOwn: each is about that failure, and one
// that nobody knows has none.
func TestEveryFailureToConnectHasAHintOfItsOwn(t *testing.T) {
	request := func(err error) error {
		return registryError(&url.Error{Op: "Get", URL: "https://user:secret@registry.example/v2/", Err: err})
	}
	for name, test := range map[string]struct {
		err         error
		cause, hint string
	}{
		"nothing listens":          {request(&net.OpError{Op: "dial", Net: "tcp", Err: unix.ECONNREFUSED}), "connection refused", "runs at this address"},
		"the name is unknown":      {request(&net.DNSError{Err: "no such host", Name: "registry.example", IsNotFound: true}), "no such host", "can resolve it"},
		"the proxy is away":        {request(&net.OpError{Op: "proxyconnect", Net: "tcp", Err: unix.ECONNREFUSED}), "proxyconnect", "check the proxy"},
		"the host is away":         {request(&net.OpError{Op: "dial", Net: "tcp", Err: unix.EHOSTUNREACH}), "no route to host", "can reach it"},
		"the certificate is wrong": {request(&tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: "registry.example"}}), "x509", "must trust the certificate"},
		"there is no TLS":          {request(http.ErrSchemeMismatch), "HTTP response to HTTPS client", "does not speak TLS"},
		"the download is cut":      {registryError(io.ErrUnexpectedEOF), "unexpected EOF", "try again"},
		"time is up":               {context.DeadlineExceeded, "had not answered", ""},
		"something else":           {registryError(errors.New("surprise")), "surprise", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cause, hint := explainPull(test.err, "registry.example")
			if !strings.Contains(cause, test.cause) || strings.Contains(cause, "secret") {
				t.Errorf("the cause is %q, want %q in it and no secret", cause, test.cause)
			}
			if !strings.Contains(hint, test.hint) || (hint == "") != (test.hint == "") {
				t.Errorf("the hint is %q, want %q", hint, test.hint)
			}
		})
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
