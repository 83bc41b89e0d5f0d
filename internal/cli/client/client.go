// Package client connects commands to a server: address, token, transport.
//
// A token comes from a file or the environment, never from the command line,
// where every user of the machine could read it.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
)

// The variables that say where the server is and who is calling. The first
// pair is for managing runners, the second for using sandboxes; each stands in
// for the other where only one is set.
const (
	EndpointVariable        = "COREWEAVE_API_ENDPOINT"
	TokenVariable           = "COREWEAVE_API_TOKEN"
	SandboxEndpointVariable = "CWSANDBOX_BASE_URL"
	SandboxTokenVariable    = "CWSANDBOX_API_KEY"
)

// maxMessageBytes is as much as the server takes and sends in one message.
const maxMessageBytes = 100 << 20

// ErrNotConfigured says that nothing tells where the server is.
var ErrNotConfigured = errors.New("no server is configured: set " + EndpointVariable +
	" or " + SandboxEndpointVariable + ", or give --endpoint; `sandbar dev` writes a file that sets them, DIR/env")

// Surface is the part of the API that a command speaks to.
type Surface int

// The surfaces.
const (
	// Management is runners, clusters, tokens and images.
	Management Surface = iota
	// Sandboxes is everything that is done with sandboxes.
	Sandboxes
)

// Options say where the server is. What is empty is taken from the environment.
type Options struct {
	Endpoint string
	// TokenFile holds the token and nothing else.
	TokenFile string
	// CACertFile holds certificates in PEM to trust besides the system's.
	CACertFile string
	Getenv     func(string) string
}

// Client holds a client of each service.
type Client struct {
	Sandboxes sandboxv1connect.SandboxServiceClient
	Runners   sandboxv1connect.RunnerManagementServiceClient
	Clusters  adminv1connect.ClusterServiceClient
	Tokens    adminv1connect.TokenServiceClient
	Audit     adminv1connect.AuditServiceClient
	Images    adminv1connect.ImageServiceClient

	transport *http.Transport
}

// New makes a client; it sends nothing yet.
func New(options Options, surface Surface) (*Client, error) {
	endpoint, err := options.endpoint(surface)
	if err != nil {
		return nil, err
	}
	token, err := options.token(surface)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(endpoint, options.CACertFile)
	if err != nil {
		return nil, err
	}
	httpClient := &http.Client{Transport: transport}
	base := strings.TrimSuffix(endpoint.String(), "/")
	common := []connect.ClientOption{
		connect.WithInterceptors(bearer{token: token}),
		connect.WithReadMaxBytes(maxMessageBytes),
	}
	// Field numbers of managed runners are not part of the public contract;
	// their names are. JSON therefore works against any server.
	byName := append([]connect.ClientOption{connect.WithProtoJSON()}, common...)
	return &Client{
		Sandboxes: sandboxv1connect.NewSandboxServiceClient(httpClient, base, common...),
		Runners:   sandboxv1connect.NewRunnerManagementServiceClient(httpClient, base, byName...),
		Clusters:  adminv1connect.NewClusterServiceClient(httpClient, base, common...),
		Tokens:    adminv1connect.NewTokenServiceClient(httpClient, base, common...),
		Audit:     adminv1connect.NewAuditServiceClient(httpClient, base, common...),
		Images:    adminv1connect.NewImageServiceClient(httpClient, base, common...),
		transport: transport,
	}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

func (o Options) endpoint(surface Surface) (*url.URL, error) {
	source, text := "--endpoint", o.Endpoint
	for _, name := range ordered(surface, EndpointVariable, SandboxEndpointVariable) {
		if text == "" {
			source, text = name, o.Getenv(name)
		}
	}
	if text == "" {
		return nil, ErrNotConfigured
	}
	endpoint, err := url.Parse(strings.TrimSpace(text))
	if err != nil || endpoint.Host == "" || (endpoint.Scheme != "http" && endpoint.Scheme != "https") {
		return nil, fmt.Errorf("%s is %q: it must be a URL like https://host:port or, on this machine, http://127.0.0.1:port", source, text)
	}
	return endpoint, nil
}

func (o Options) token(surface Surface) (string, error) {
	if o.TokenFile != "" {
		content, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		token := strings.TrimSpace(string(content))
		if token == "" {
			return "", fmt.Errorf("the token file %s is empty", o.TokenFile)
		}
		return token, nil
	}
	for _, name := range ordered(surface, TokenVariable, SandboxTokenVariable) {
		if token := strings.TrimSpace(o.Getenv(name)); token != "" {
			return token, nil
		}
	}
	return "", nil
}

func ordered(surface Surface, management, sandboxes string) []string {
	if surface == Sandboxes {
		return []string{sandboxes, management}
	}
	return []string{management, sandboxes}
}

// newTransport speaks HTTP/2 always, since streams in both directions need it:
// with prior knowledge over http, by negotiation over https.
func newTransport(endpoint *url.URL, caCertFile string) (*http.Transport, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		Protocols:           new(http.Protocols),
	}
	if endpoint.Scheme == "http" {
		transport.Protocols.SetUnencryptedHTTP2(true)
		return transport, nil
	}
	transport.Protocols.SetHTTP1(true)
	transport.Protocols.SetHTTP2(true)
	if caCertFile == "" {
		return transport, nil
	}
	pem, err := os.ReadFile(caCertFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificates to trust: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", caCertFile)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return transport, nil
}

// bearer puts the token on every call.
type bearer struct{ token string }

func (b bearer) set(header http.Header) {
	if b.token != "" {
		header.Set("Authorization", "Bearer "+b.token)
	}
}

// WrapUnary is part of connect.Interceptor.
func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		b.set(request.Header())
		return next(ctx, request)
	}
}

// WrapStreamingClient is part of connect.Interceptor.
func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		b.set(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler is part of connect.Interceptor.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
