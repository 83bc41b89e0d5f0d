package server

import (
	"context"
	"net/http"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/fleet"
)

// Gateway is what the server needs of the gateway.
type Gateway interface {
	sandboxv1connect.SandboxServiceHandler
	sandboxv1connect.DiscoveryServiceHandler
	adminv1connect.ImageServiceHandler
	runnerv1connect.EnrollmentServiceHandler
	fleet.Gateway
	fleet.PolicyPlanner

	// TunnelHandler is where runners dial in.
	TunnelHandler() http.Handler
	// Start begins its work in the background.
	Start()
	// Shutdown ends every stream and tunnel, and waits for its work.
	Shutdown(ctx context.Context) error
}
