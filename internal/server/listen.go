package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// listen takes the port. What is refused, is refused before anything starts.
func listen(ctx context.Context, cfg Config) (net.Listener, *tls.Config, error) {
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("listen address %q is not of the form host:port, such as 127.0.0.1:8080", cfg.Listen)
	}
	if (cfg.TLSCertFile == "") != (cfg.TLSKeyFile == "") {
		return nil, nil, errors.New("a TLS certificate and its key must be given together")
	}
	var tlsConfig *tls.Config
	if cfg.TLSCertFile != "" {
		certificate, err := tls.LoadX509KeyPair(cfg.TLSCertFile, cfg.TLSKeyFile)
		if err != nil {
			return nil, nil, fmt.Errorf("load the TLS certificate: %w", err)
		}
		tlsConfig = &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{certificate},
			NextProtos:   []string{"h2", "http/1.1"},
		}
	} else if !loopback(host) && !cfg.AllowPlaintext {
		return nil, nil, fmt.Errorf("refusing to serve without TLS on %s: tokens would cross the network in the clear; give a certificate and key, listen on a loopback address, or allow plain text when a proxy in front ends TLS", cfg.Listen)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, nil, fmt.Errorf("%s is in use by another program; stop it, or listen on another port: %w", cfg.Listen, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	return listener, tlsConfig, nil
}

// loopback says whether the host names only this machine. Names are not
// resolved: one that points here now may point elsewhere later.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// baseURL is where the listener is reached from this machine.
func baseURL(listener net.Listener, secure bool) string {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return scheme + "://" + listener.Addr().String()
	}
	host := address.IP.String()
	if address.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, fmt.Sprint(address.Port))
}
