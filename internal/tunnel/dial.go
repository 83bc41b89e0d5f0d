package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// dial opens a connection to the server and has it upgraded. It answers
// ErrUnauthorized, a *RefusedError, or what went wrong on the way.
func dial(ctx context.Context, opts Options) (*upgradedConn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	server, err := url.Parse(opts.ServerURL)
	if err != nil {
		return nil, fmt.Errorf("parse the server's address: %w", err)
	}
	conn, err := connect(ctx, server, opts)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server.Host, err)
	}
	upgraded, err := upgrade(ctx, conn, server, opts.Credential)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return upgraded, nil
}

func connect(ctx context.Context, server *url.URL, opts Options) (net.Conn, error) {
	var port string
	switch server.Scheme {
	case "http":
		port = "80"
	case "https":
		port = "443"
	default:
		return nil, fmt.Errorf("the server's address %q must begin with http:// or https://", opts.ServerURL)
	}
	if server.Port() != "" {
		port = server.Port()
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(server.Hostname(), port))
	if err != nil {
		return nil, err
	}
	if server.Scheme == "http" {
		return conn, nil
	}
	config := opts.TLSConfig.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.NextProtos = []string{"http/1.1"}
	if config.ServerName == "" {
		config.ServerName = server.Hostname()
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS handshake: %w", err), conn.Close())
	}
	return secure, nil
}

// upgrade asks for the change of protocol; conn is the caller's to close when
// it fails.
func upgrade(ctx context.Context, conn net.Conn, server *url.URL, credential string) (*upgradedConn, error) {
	// A deadline in the past wakes the reads and writes below when ctx ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	target := url.URL{Scheme: server.Scheme, Host: server.Host, Path: Path}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), http.NoBody)
	if err != nil {
		stop()
		return nil, fmt.Errorf("make the upgrade request: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	req.Header.Set("Authorization", "Bearer "+credential)
	reader := bufio.NewReader(conn)
	err = exchange(conn, reader, req)
	if !stop() {
		// The context has ended, and its function may still be setting the
		// deadline.
		return nil, fmt.Errorf("ask for the upgrade: %w", errors.Join(context.Cause(ctx), err))
	}
	if err != nil {
		return nil, err
	}
	return newUpgradedConn(conn, reader), nil
}

func exchange(conn net.Conn, reader *bufio.Reader, req *http.Request) error {
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("ask for the upgrade: %w", err)
	}
	resp, err := http.ReadResponse(reader, req)
	if err != nil {
		return fmt.Errorf("read the answer to the upgrade: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		if !isUpgrade(resp.Header) {
			return &RefusedError{StatusCode: resp.StatusCode, Message: "it switched to another protocol"}
		}
		return nil
	case http.StatusUnauthorized:
		return fmt.Errorf("ask for the upgrade: %w", ErrUnauthorized)
	}
	const enough = 512
	body, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	if err != nil {
		return fmt.Errorf("read the refusal: %w", err)
	}
	return &RefusedError{StatusCode: resp.StatusCode, Message: strings.TrimSpace(string(body))}
}
