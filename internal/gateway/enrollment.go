package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Enroll implements EnrollmentService.
func (g *Gateway) Enroll(ctx context.Context, req *runnerv1.EnrollRequest) (*runnerv1.EnrollResponse, error) {
	identity, credential, err := g.runners.Enroll(ctx, req.GetEnrollmentToken(), req.GetVersion())
	if errors.Is(err, ErrUnknownCredential) {
		return nil, apierr.New(apierr.Unauthenticated,
			"the enrolment token is not known: it is of another server, or of a revision that is no longer wanted").Because(err)
	}
	if err != nil {
		return nil, fmt.Errorf("enrol a runner: %w", err)
	}
	g.logger.InfoContext(ctx, "runner enrolled", "runner_id", identity.RunnerID, "org_id", identity.OrganizationID,
		"revision", identity.Revision, "version", req.GetVersion())
	return &runnerv1.EnrollResponse{
		Credential:     credential,
		RunnerId:       identity.RunnerID,
		OrganizationId: identity.OrganizationID,
		Revision:       identity.Revision,
	}, nil
}

// Heartbeat implements EnrollmentService. The runner shows its credential as a
// bearer token.
func (g *Gateway) Heartbeat(ctx context.Context, req *runnerv1.HeartbeatRequest) (*runnerv1.HeartbeatResponse, error) {
	var credential string
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		credential, _ = strings.CutPrefix(call.RequestHeader().Get("Authorization"), "Bearer ")
	}
	identity, err := g.runners.Authenticate(ctx, credential)
	if errors.Is(err, ErrUnknownCredential) {
		return nil, apierr.New(apierr.Unauthenticated, "the runner's credential is not known; enrol again").Because(err)
	}
	if err != nil {
		return nil, fmt.Errorf("authenticate a runner: %w", err)
	}
	if home := g.registry.known(identity.RunnerKey); home != nil && req.GetCapacity() != nil {
		home.setCapacity(req.GetCapacity())
	}
	g.runners.Heartbeat(ctx, identity, g.clock.Now())
	return &runnerv1.HeartbeatResponse{}, nil
}
