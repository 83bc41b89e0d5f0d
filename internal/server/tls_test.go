package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

// certify makes a certificate of 127.0.0.1, and answers with its files and a
// pool that trusts it.
func certify(t *testing.T) (certificate, key string, trust *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sandbar test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	trust = x509.NewCertPool()
	trust.AddCert(parsed)
	return certificate, key, trust
}

func TestEveryProtocolIsSpokenOverTLS(t *testing.T) {
	certificate, key, trust := certify(t)
	w, _ := talk(t, func(cfg *Config) { cfg.TLSCertFile, cfg.TLSKeyFile = certificate, key })
	if !strings.HasPrefix(w.URL(), "https://127.0.0.1:") {
		t.Fatalf("serving on %s", w.URL())
	}
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			client := http2(t, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS12}})
			checkConversation(t, w.sandboxes(client, w.user, options...))
		})
	}
	get := func(t *testing.T, client *http.Client, url string) error {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+healthPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s answered %d", url, response.StatusCode)
		}
		return nil
	}
	for name, test := range map[string]struct {
		client *tls.Config
		ok     bool
	}{
		"HTTP/1.1 for clients that speak no more":   {&tls.Config{RootCAs: trust, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}, true},
		"a client that does not trust it is warned": {&tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, false},
		"versions that are no longer safe":          {&tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false},
	} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{TLSClientConfig: test.client}
			t.Cleanup(transport.CloseIdleConnections)
			if err := get(t, &http.Client{Transport: transport}, w.URL()); (err == nil) != test.ok {
				t.Errorf("%v; want success: %t", err, test.ok)
			}
		})
	}
	t.Run("plain text is not served", func(t *testing.T) {
		client := http2(t, &http.Transport{})
		_, err := w.sandboxesAt(client, strings.Replace(w.URL(), "https://", "http://", 1)).
			GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "sb-1"})
		if err == nil {
			t.Error("a call in the clear was answered")
		}
	})
}

func (w *world) sandboxesAt(client *http.Client, url string) sandboxv1connect.SandboxServiceClient {
	return sandboxv1connect.NewSandboxServiceClient(client, url, connect.WithInterceptors(credentials(w.user)))
}

// stubRunner answers the gateway as a runner without sandboxes does.
type stubRunner struct {
	runnerv1connect.UnimplementedRunnerServiceHandler

	identity *runnerv1.EnrollResponse
	policies chan string
}

func (s *stubRunner) Describe(context.Context, *runnerv1.DescribeRequest) (*runnerv1.DescribeResponse, error) {
	return &runnerv1.DescribeResponse{
		RunnerId: s.identity.GetRunnerId(), Revision: s.identity.GetRevision(), Version: "1.0.0", Architecture: "amd64", Runtime: "stub",
		Capacity: &runnerv1.Capacity{CpuMillicores: 4000, MemoryBytes: 8 << 30},
	}, nil
}

func (s *stubRunner) SetPolicy(_ context.Context, req *runnerv1.SetPolicyRequest) (*runnerv1.SetPolicyResponse, error) {
	s.policies <- req.GetEtag()
	return &runnerv1.SetPolicyResponse{}, nil
}

func (s *stubRunner) WatchSandboxes(ctx context.Context, _ *runnerv1.WatchSandboxesRequest, stream *connect.ServerStream[runnerv1.WatchSandboxesResponse]) error {
	if err := stream.Send(&runnerv1.WatchSandboxesResponse{Event: &runnerv1.WatchSandboxesResponse_InSync{InSync: true}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// enrolled waits for the runner's revision to be installed, and enrols.
func (w *world) enrolled(t *testing.T, client *http.Client) *runnerv1.EnrollResponse {
	t.Helper()
	enrollment := runnerv1connect.NewEnrollmentServiceClient(client, w.URL())
	var token string
	eventually(t, "the revision is installed", func() bool {
		token = w.install.token("runner-1")
		return token != ""
	})
	identity, err := enrollment.Enroll(t.Context(), &runnerv1.EnrollRequest{EnrollmentToken: token, Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// eventually looks until it is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestARunnersTunnelGoesOverTLS(t *testing.T) {
	certificate, key, trust := certify(t)
	w := startWith(t, func(cfg *Config) { cfg.TLSCertFile, cfg.TLSKeyFile = certificate, key }, newGateway)
	secure := &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS12}
	transport := &http.Transport{TLSClientConfig: secure.Clone()}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &http.Client{Transport: transport}
	created := w.create(t, w.wish())
	stub := &stubRunner{identity: w.enrolled(t, w.client), policies: make(chan string, 8)}
	_, handler := runnerv1connect.NewRunnerServiceHandler(stub)

	// A runner that does not trust the server does not connect.
	tried := make(chan struct{}, 1)
	wary, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	ended := dial(wary, w.URL(), tunnel.Options{
		Credential: stub.identity.GetCredential(), Handler: handler,
		TLSConfig: &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12},
		Connected: func() { t.Error("a tunnel to a server that is not trusted") },
		Sleep: func(ctx context.Context, _ time.Duration) error {
			tried <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		},
	})
	<-tried
	giveUp()
	if err := <-ended; err != nil {
		t.Errorf("the wary tunnel: %v", err)
	}

	connected, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	ended = dial(connected, w.URL(), tunnel.Options{Credential: stub.identity.GetCredential(), Handler: handler, TLSConfig: secure})
	select {
	case etag := <-stub.policies:
		if etag != created.GetEtag() {
			t.Errorf("pushed the policy %q; want %q", etag, created.GetEtag())
		}
	case <-time.After(patience):
		t.Fatal("no policy came through the tunnel")
	}
	discovery := sandboxv1connect.NewDiscoveryServiceClient(w.client, w.URL(), bearer(w.user))
	eventually(t, "the runner is discovered as healthy, with its capacity", func() bool {
		listed, err := discovery.ListAvailableRunners(t.Context(), &sandboxv1.ListAvailableRunnersRequest{View: sandboxv1.RunnerView_RUNNER_VIEW_FULL, HealthyOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		runners := listed.GetRunners()
		return len(runners) == 1 && runners[0].GetCapabilities().GetMaxCpuMillicores() == 4000 && runners[0].GetResources().GetAvailableMemoryBytes() == 8<<30
	})
	disconnect()
	if err := <-ended; err != nil {
		t.Errorf("the tunnel: %v", err)
	}
}

// dial keeps a tunnel open until ctx ends.
func dial(ctx context.Context, url string, options tunnel.Options) <-chan error {
	options.ServerURL, options.Logger = url, slog.New(slog.DiscardHandler)
	ended := make(chan error, 1)
	go func() { ended <- tunnel.Serve(ctx, options) }()
	return ended
}
