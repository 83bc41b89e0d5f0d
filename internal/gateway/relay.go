package gateway

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// operable answers with a sandbox that runs and the session to reach it
// through. A sandbox that is being created is waited for, as long as the call
// lasts. container is the caller's choice; empty means the only one.
func (g *Gateway) operable(ctx context.Context, sandboxID, container string) (*sandbox, *session, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, nil, err
	}
	sb, err := g.find(ctx, caller.OrganizationID, sandboxID)
	if err != nil {
		return nil, nil, err
	}
	record := sb.record()
	s := g.registry.runner(sb.key).session()
	if isCreating(record) && s != nil {
		if record, s, err = g.waitCreated(ctx, sb); err != nil {
			return nil, nil, err
		}
	}
	switch state := record.Status.GetState(); {
	case state == running && s != nil:
	case state == running || state == creating:
		return nil, nil, runnerUnavailable(sb.key.RunnerID)
	default:
		return nil, nil, apierr.New(apierr.SandboxNotRunning, "sandbox %s is not running: it is %s", sb.id, describeState(record)).
			With("sandbox_id", sb.id).With("state", state.String())
	}
	if name := record.Spec.GetContainers()[0].GetName(); container != "" && container != name {
		var v violations
		v.add("container", "UNKNOWN", "%q is not a container of the sandbox; its only one is %q", container, name)
		return nil, nil, v.err()
	}
	return sb, s, nil
}

// waitCreated waits while the sandbox is being created by a runner that is
// connected; the session is nil when the runner has gone. When it comes back is
// not known, and no call waits for it.
func (g *Gateway) waitCreated(ctx context.Context, sb *sandbox) (*Record, *session, error) {
	home := g.registry.runner(sb.key)
	for {
		elected := home.nextElection()
		view, s := sb.view(), home.session()
		if !isCreating(view.record) || s == nil {
			return view.record, s, nil
		}
		select {
		case <-view.changed:
		case <-elected:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

func describeState(record *Record) string {
	state := record.Status.GetState().String()
	if reason := record.Status.GetStateReason(); reason != "" {
		return state + " (" + reason + ")"
	}
	return state
}

func runnerUnavailable(runnerID string) *apierr.Error {
	return apierr.New(apierr.RunnerUnavailable,
		"runner %s is not connected; its sandboxes are kept, try again when it is back", runnerID).With("runner_id", runnerID)
}

// relayed is what the caller hears of a call to a runner that has failed: what
// the runner itself answered, with its details; or that it is not there.
func relayed(ctx context.Context, s *session, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var sent *connect.Error
	if !errors.As(err, &sent) || !connect.IsWireError(err) {
		return runnerUnavailable(s.identity.RunnerID).Because(err)
	}
	// A new one, without the headers that came with it.
	out := connect.NewError(sent.Code(), errors.New(sent.Message()))
	for _, detail := range sent.Details() {
		out.AddDetail(detail)
	}
	return out
}
