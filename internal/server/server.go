package server

import (
	"context"
	"errors"

	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
)

// Server is one process: control plane and gateway on one port.
type Server struct{ cfg Config }

var errUnassembled = errors.New("the server is not assembled yet")

// Run serves until ctx ends, and returns when everything has stopped.
func Run(ctx context.Context, cfg Config) error {
	srv, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	return srv.Serve(ctx)
}

// New opens the store and listens; nothing is served before Serve. A server
// that is not served must be closed.
func New(_ context.Context, cfg Config) (*Server, error) {
	return &Server{cfg: cfg}, errUnassembled
}

// Serve serves until ctx ends, and returns when everything has stopped and is
// closed.
func (s *Server) Serve(context.Context) error { return errUnassembled }

// Close releases what New took. Serve does it too.
func (s *Server) Close() error { return errUnassembled }

// URL is the base URL of the server, with the port that was taken.
func (s *Server) URL() string { return s.cfg.AdvertiseURL }

// Ready is closed when requests are answered.
func (s *Server) Ready() <-chan struct{} { return nil }

// EnsureOrganization returns the organization of that name, and makes it when
// it is not there.
func (s *Server) EnsureOrganization(context.Context, string) (auth.Organization, error) {
	return auth.Organization{}, errUnassembled
}

// Tokens issues, lists and revokes API tokens.
func (s *Server) Tokens() *auth.Tokens { return nil }

// EnsureLocalCluster returns the cluster that is this host in the
// organization, and registers it under that name and zone when it is not
// there.
func (s *Server) EnsureLocalCluster(_ context.Context, organizationID, name, zone string) (fleet.Cluster, error) {
	return fleet.Cluster{OrganizationID: organizationID, Name: name, Zone: zone}, errUnassembled
}
