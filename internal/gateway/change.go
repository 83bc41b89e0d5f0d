package gateway

import (
	"context"
	"errors"
	"fmt"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// find answers with a sandbox of the organization, live or ended. Only a
// sandbox that is in memory has a runner that is known to hold it. Another
// organization's id answers exactly as one that never was.
func (g *Gateway) find(ctx context.Context, organizationID, sandboxID string) (*sandbox, error) {
	if sb := g.registry.sandbox(sandboxID); sb != nil {
		if sb.key.OrganizationID != organizationID {
			return nil, notFound(sandboxID)
		}
		return sb, nil
	}
	record, err := g.store.Sandbox(ctx, organizationID, sandboxID)
	if errors.Is(err, ErrSandboxNotFound) {
		return nil, notFound(sandboxID)
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox %s: %w", sandboxID, err)
	}
	// It may have been taken up since.
	if sb := g.registry.sandbox(sandboxID); sb != nil {
		return sb, nil
	}
	return newSandbox(record), nil
}

func notFound(sandboxID string) error {
	return apierr.New(apierr.SandboxNotFound, "no sandbox %q", sandboxID).With("sandbox_id", sandboxID)
}

// change edits a sandbox in the store and then in memory. When it has ended it
// leaves memory, its room is free, and its runner may forget it.
func (g *Gateway) change(ctx context.Context, sb *sandbox, edit func(*Record) bool) (*Record, error) {
	home := g.registry.runner(sb.key)
	home.attach.RLock()
	defer home.attach.RUnlock()
	// A sandbox that was read from the store may be in memory by now.
	if current := g.registry.sandbox(sb.id); current != nil {
		sb = current
	}
	sb.write.Lock()
	defer sb.write.Unlock()
	record, err := g.store.ChangeSandbox(ctx, sb.key.OrganizationID, sb.id, edit)
	if errors.Is(err, ErrSandboxNotFound) {
		return nil, notFound(sb.id)
	}
	if err != nil {
		return nil, fmt.Errorf("change sandbox %s: %w", sb.id, err)
	}
	before := sb.record()
	sb.publish(record)
	if state := record.Status.GetState(); state != before.Status.GetState() {
		g.logger.InfoContext(ctx, "sandbox changed state", "sandbox_id", sb.id, "org_id", sb.key.OrganizationID,
			"runner_id", sb.key.RunnerID, "state", state.String(), "reason", record.Status.GetStateReason())
	}
	if !isLive(record) && g.registry.sandbox(sb.id) == sb {
		g.registry.remove(sb)
		if !g.background.Go(func() { g.forget(sb) }) {
			home.departed(sb.id)
		}
	}
	return record, nil
}

// forget lets the runner drop its record of an ended sandbox. When that fails,
// the next connection finds the record and drops it.
func (g *Gateway) forget(sb *sandbox) {
	home := g.registry.runner(sb.key)
	defer home.departed(sb.id)
	sb.readers.wait(g.ctx)
	if s := home.session(); s != nil {
		s.forget(g.ctx, sb.id)
	}
}

// observe applies what a runner reports of a sandbox in memory.
func (g *Gateway) observe(ctx context.Context, sb *sandbox, observed *runnerv1.SandboxRecord) error {
	if observed.GetGeneration() <= sb.record().Generation {
		return nil
	}
	_, err := g.change(ctx, sb, func(record *Record) bool {
		return applyObservation(record, observed, g.clock.Now())
	})
	return err
}

// lose ends a sandbox that its runner does not have.
func (g *Gateway) lose(ctx context.Context, sb *sandbox, reason string) error {
	_, err := g.change(ctx, sb, func(record *Record) bool {
		return applyEvent(record, lost, reason, g.clock.Now())
	})
	return err
}
