package client_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/cli/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listener is a server that answers to lists and remembers how it was asked.
type listener struct {
	sandboxv1connect.UnimplementedRunnerManagementServiceHandler

	url           string
	certificate   []byte
	asked         int
	authorization string
	protocol      string
}

func (l *listener) ListManagedRunners(ctx context.Context, _ *sandboxv1.ListManagedRunnersRequest) (*sandboxv1.ListManagedRunnersResponse, error) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	l.asked++
	l.authorization = info.RequestHeader().Get("Authorization")
	return &sandboxv1.ListManagedRunnersResponse{}, nil
}

func listen(t *testing.T, encrypted bool) *listener {
	t.Helper()
	l := &listener{}
	_, handler := sandboxv1connect.NewRunnerManagementServiceHandler(l)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.protocol = r.Proto
		handler.ServeHTTP(w, r)
	}))
	if encrypted {
		server.EnableHTTP2 = true
		server.StartTLS()
		l.certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	} else {
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
	}
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

// call makes a client and one call with it.
func call(t *testing.T, options client.Options, environment map[string]string, surface client.Surface) error {
	t.Helper()
	options.Getenv = func(name string) string { return environment[name] }
	c, err := client.New(options, surface)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Runners.ListManagedRunners(t.Context(), &sandboxv1.ListManagedRunnersRequest{})
	return err
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFlagGoesBeforeTheEnvironmentAndEachPairStandsInForTheOther(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	tokenFile := file(t, " from-file \n")
	for name, c := range map[string]struct {
		surface client.Surface
		// options and environment get the server's URL for "HERE".
		options     client.Options
		environment map[string]string
		token       string
	}{
		"management takes its own pair": {
			client.Management,
			client.Options{},
			map[string]string{
				client.EndpointVariable: "HERE", client.TokenVariable: "managing",
				client.SandboxEndpointVariable: nowhere, client.SandboxTokenVariable: "using",
			},
			"managing",
		},
		"sandboxes take theirs": {
			client.Sandboxes,
			client.Options{},
			map[string]string{
				client.EndpointVariable: nowhere, client.TokenVariable: "managing",
				client.SandboxEndpointVariable: "HERE", client.SandboxTokenVariable: "using",
			},
			"using",
		},
		"management without its own takes the other's": {
			client.Management,
			client.Options{},
			map[string]string{client.SandboxEndpointVariable: "HERE", client.SandboxTokenVariable: "using"},
			"using",
		},
		"sandboxes without their own take the other's": {
			client.Sandboxes,
			client.Options{},
			map[string]string{client.EndpointVariable: "HERE", client.TokenVariable: "managing"},
			"managing",
		},
		"address and token are taken one by one": {
			client.Sandboxes,
			client.Options{},
			map[string]string{client.EndpointVariable: "HERE", client.SandboxTokenVariable: "using"},
			"using",
		},
		"flags win": {
			client.Management,
			client.Options{Endpoint: "HERE", TokenFile: tokenFile},
			map[string]string{client.EndpointVariable: nowhere, client.TokenVariable: "managing"},
			"from-file",
		},
		"one flag leaves the other to the environment": {
			client.Management,
			client.Options{Endpoint: "HERE"},
			map[string]string{client.EndpointVariable: nowhere, client.TokenVariable: " managing\n"},
			"managing",
		},
		"without a token none is sent": {client.Management, client.Options{Endpoint: "HERE"}, nil, ""},
		"a slash at the end is no matter": {
			client.Management, client.Options{Endpoint: "HERE/"}, nil, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := listen(t, false)
			options := c.options
			options.Endpoint = strings.Replace(options.Endpoint, "HERE", server.url, 1)
			environment := map[string]string{}
			for variable, value := range c.environment {
				environment[variable] = strings.Replace(value, "HERE", server.url, 1)
			}
			if err := call(t, options, environment, c.surface); err != nil {
				t.Fatal(err)
			}
			want := ""
			if c.token != "" {
				want = "Bearer " + c.token
			}
			if server.asked != 1 || server.authorization != want {
				t.Errorf("the server was asked %d times, as %q, want once as %q", server.asked, server.authorization, want)
			}
			if server.protocol != "HTTP/2.0" {
				t.Errorf("it was spoken to in %s", server.protocol)
			}
		})
	}
}

func TestWhatCannotBeUsedIsRefusedBeforeAnythingIsSent(t *testing.T) {
	server := listen(t, true)
	for name, c := range map[string]struct {
		options     client.Options
		environment map[string]string
		says        string
	}{
		"no address":                       {client.Options{}, nil, "no server is configured"},
		"an address without //":            {client.Options{Endpoint: "localhost:8080"}, nil, "--endpoint is \"localhost:8080\": it must be a URL"},
		"an unknown scheme":                {client.Options{}, map[string]string{client.EndpointVariable: "ftp://host"}, client.EndpointVariable + ` is "ftp://host"`},
		"a token file that is not there":   {client.Options{Endpoint: server.url, TokenFile: "/no/such/file"}, nil, "read the token"},
		"an empty token file":              {client.Options{Endpoint: server.url, TokenFile: file(t, " \n")}, nil, "is empty"},
		"a certificate file not there":     {client.Options{Endpoint: server.url, CACertFile: "/no/such/file"}, nil, "read the certificates to trust"},
		"a certificate file without any":   {client.Options{Endpoint: server.url, CACertFile: file(t, "text")}, nil, "holds no certificate in PEM"},
		"an empty token file, despite env": {client.Options{Endpoint: server.url, TokenFile: file(t, "")}, map[string]string{client.TokenVariable: "token"}, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			err := call(t, c.options, c.environment, client.Management)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
	if server.asked != 0 {
		t.Errorf("the server was asked %d times", server.asked)
	}
}

func TestOverTLSTheServerIsTrustedOnlyWithItsCertificate(t *testing.T) {
	server := listen(t, true)
	if err := call(t, client.Options{Endpoint: server.url}, nil, client.Management); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a server with an unknown certificate is answered with %v", err)
	}
	if server.asked != 0 {
		t.Fatal("a server that is not trusted was asked")
	}
	trusted := client.Options{Endpoint: server.url, CACertFile: file(t, string(server.certificate))}
	if err := call(t, trusted, nil, client.Management); err != nil {
		t.Fatal(err)
	}
	if server.protocol != "HTTP/2.0" {
		t.Errorf("it was spoken to in %s", server.protocol)
	}
}
