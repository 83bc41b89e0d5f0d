package gateway

import (
	"time"
)

const (
	// retention is how long a sandbox stays readable after its end.
	retention = 24 * time.Hour
	// sweepInterval is between looks for what is over.
	sweepInterval = time.Minute
)

// keepRetention forgets what ended long ago and ends what has lost its runner
// for good, until the gateway shuts down.
func (g *Gateway) keepRetention() {
	ticker := g.clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		g.sweep()
		select {
		case <-ticker.C():
		case <-g.ctx.Done():
			return
		}
	}
}

func (g *Gateway) sweep() {
	count, err := g.store.DeleteSandboxesEndedBefore(g.ctx, g.clock.Now().Add(-retention))
	switch {
	case err != nil && g.ctx.Err() == nil:
		g.logger.ErrorContext(g.ctx, "forget sandboxes that ended long ago", "error", err)
	case count > 0:
		g.logger.InfoContext(g.ctx, "forgot sandboxes that ended long ago", "count", count)
	}
	for _, home := range g.registry.all() {
		if len(home.connected()) > 0 {
			continue
		}
		if err := g.endRemoved(home); err != nil && g.ctx.Err() == nil {
			g.logger.ErrorContext(g.ctx, "end the sandboxes of a removed runner", "runner_id", home.key.RunnerID,
				"org_id", home.key.OrganizationID, "error", err)
		}
	}
}

// endRemoved ends the sandboxes of a runner that is no longer declared.
func (g *Gateway) endRemoved(home *runner) error {
	_, ok, err := g.runners.Runner(g.ctx, home.key)
	if err != nil || ok {
		return err
	}
	records, err := g.store.LiveSandboxes(g.ctx, home.key)
	if err != nil {
		return err
	}
	for _, record := range records {
		sb, err := g.find(g.ctx, record.OrganizationID, record.SandboxID)
		if err != nil {
			return err
		}
		if err := g.lose(g.ctx, sb, reasonRunnerRemoved); err != nil {
			return err
		}
	}
	return nil
}
