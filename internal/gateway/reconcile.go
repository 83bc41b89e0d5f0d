package gateway

import (
	"context"
	"errors"
	"fmt"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

// Why a sandbox has failed that its runner does not have.
const (
	reasonLost          = "the sandbox's runner no longer has it"
	reasonRunnerRemoved = "the sandbox's runner has been removed"
)

// takeUp brings the live sandboxes of a runner into memory and answers with
// the ids of all that are there: the runner must have these, or they are lost.
// Sandboxes created later are not judged by what it had then.
func (g *Gateway) takeUp(ctx context.Context, home *runner) ([]string, error) {
	home.attach.Lock()
	defer home.attach.Unlock()
	records, err := g.store.LiveSandboxes(ctx, home.key)
	if err != nil {
		return nil, fmt.Errorf("list the runner's live sandboxes: %w", err)
	}
	for _, record := range records {
		g.registry.add(record)
	}
	live := home.live()
	ids := make([]string, len(live))
	for i, sb := range live {
		ids[i] = sb.id
	}
	return ids, nil
}

// reconcile compares the three sides once: what the store has, what the runner
// has, and so what its engine has.
//
//	in the store   at the runner   then
//	live           yes             the runner's record is applied
//	creating       no              it is created again
//	live           no              it is lost: FAILED, or TERMINATED when its end was requested
//	ended, none    yes             the runner removes it
//
// Work that an earlier process began, a creation or a deletion, goes on.
func (g *Gateway) reconcile(ctx context.Context, s *session, expected []string, first map[string]*runnerv1.SandboxRecord) error {
	for _, record := range first {
		if err := g.told(ctx, s, record); err != nil {
			return err
		}
	}
	for _, id := range expected {
		sb := g.registry.sandbox(id)
		if sb == nil {
			continue
		}
		_, known := first[id]
		if err := g.resume(ctx, sb, known); err != nil {
			return err
		}
	}
	return nil
}

func (g *Gateway) resume(ctx context.Context, sb *sandbox, known bool) error {
	record := sb.record()
	switch {
	case !isLive(record):
		return nil
	case isCreating(record):
		if !known && record.Generation > 0 && !sb.creating.Load() {
			// The runner starts to count anew.
			if _, err := g.change(ctx, sb, func(r *Record) bool {
				changed := isCreating(r) && r.Generation != 0
				if changed {
					r.Generation = 0
				}
				return changed
			}); err != nil {
				return err
			}
		}
		g.startCreation(sb)
		return nil
	case !known:
		return g.lose(ctx, sb, reasonLost)
	case record.TerminateRequested:
		g.resumeDeletion(sb)
	}
	return nil
}

// told takes one record of a runner, be it known here or not.
func (g *Gateway) told(ctx context.Context, s *session, observed *runnerv1.SandboxRecord) error {
	sb := g.registry.sandbox(observed.GetSandboxId())
	if sb != nil && sb.key == s.identity.RunnerKey {
		return g.observe(ctx, sb, observed)
	}
	over := ended(observed.GetStatus().GetState())
	if over && g.registry.runner(s.identity.RunnerKey).isDeparting(observed.GetSandboxId()) {
		return nil
	}
	sb, err := g.adopt(ctx, s.identity.RunnerKey, observed.GetSandboxId())
	if err != nil {
		return err
	}
	if sb != nil {
		return g.observe(ctx, sb, observed)
	}
	if !over {
		s.logger.WarnContext(ctx, "the runner has a sandbox that nobody owns; it is removed", "sandbox_id", observed.GetSandboxId())
	}
	g.background.Go(func() { s.discard(g.ctx, observed.GetSandboxId(), over) })
	return nil
}

// adopt brings one live sandbox of a runner into memory; nil when the store has
// none.
func (g *Gateway) adopt(ctx context.Context, key RunnerKey, sandboxID string) (*sandbox, error) {
	home := g.registry.runner(key)
	home.attach.Lock()
	defer home.attach.Unlock()
	record, err := g.store.Sandbox(ctx, key.OrganizationID, sandboxID)
	if errors.Is(err, ErrSandboxNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox %s: %w", sandboxID, err)
	}
	if !isLive(record) || runnerKeyOf(record) != key {
		return nil, nil
	}
	return g.registry.add(record), nil
}

// discard removes what nobody owns. When that fails, the next connection finds
// it again.
func (s *session) discard(ctx context.Context, sandboxID string, over bool) {
	if !over {
		ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
		defer cancel()
		if _, err := s.client.DeleteSandbox(ctx, &runnerv1.DeleteSandboxRequest{SandboxId: sandboxID}); err != nil {
			s.logger.WarnContext(ctx, "remove a sandbox that nobody owns", "sandbox_id", sandboxID, "error", err)
			return
		}
	}
	s.forget(ctx, sandboxID)
}
