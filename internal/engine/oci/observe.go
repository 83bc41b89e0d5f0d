package oci

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Dial connects to a sandbox's guest.
func (e *Engine) Dial(ctx context.Context, id string) (net.Conn, error) {
	dir, r, err := e.existing(id)
	if err != nil {
		return nil, err
	}
	conn, err := dialControl(ctx, dir.private())
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", id, err)
	}
	// gVisor's file server holds the socket and may outlive the guest a little.
	if err := r.running(); err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox %s: %w", id, err), conn.Close())
	}
	return conn, nil
}

// Wait returns when a sandbox's guest has gone.
func (e *Engine) Wait(ctx context.Context, id string) (engine.Exit, error) {
	_, r, err := e.existing(id)
	if err != nil {
		return engine.Exit{}, err
	}
	if r.Process != nil {
		handle, err := r.Process.open()
		if err == nil {
			err = errors.Join(waitEnd(ctx, handle), handle.Close())
		}
		if err != nil && !errors.Is(err, errProcessGone) {
			return engine.Exit{}, fmt.Errorf("wait for sandbox %s: %w", id, err)
		}
	}
	exit := engine.Exit{Time: e.config.Now()}
	kills, err := e.cgroups.oomKills(e.cgroup(id))
	if err != nil && !groupIsGone(err) {
		return exit, fmt.Errorf("wait for sandbox %s: %w", id, err)
	}
	exit.OOMKilled = kills > 0
	return exit, nil
}

// Usage measures a sandbox, the runtime's own part included.
func (e *Engine) Usage(_ context.Context, id string) (engine.Usage, error) {
	_, r, err := e.existing(id)
	if err != nil {
		return engine.Usage{}, err
	}
	if err := r.running(); err != nil {
		return engine.Usage{}, fmt.Errorf("sandbox %s: %w", id, err)
	}
	usage, err := e.cgroups.usage(e.cgroup(id))
	if groupIsGone(err) {
		return engine.Usage{}, fmt.Errorf("sandbox %s: %w", id, engine.ErrNotRunning)
	}
	if err != nil {
		return engine.Usage{}, fmt.Errorf("measure sandbox %s: %w", id, err)
	}
	return usage, nil
}

// running answers engine.ErrNotRunning unless the guest is alive.
func (r record) running() error {
	if r.Process == nil {
		return engine.ErrNotRunning
	}
	alive, err := r.Process.alive()
	if err == nil && !alive {
		err = engine.ErrNotRunning
	}
	return err
}

func (e *Engine) existing(id string) (directory, record, error) {
	if !idPattern.MatchString(id) {
		return "", record{}, fmt.Errorf("sandbox %q: %w", id, engine.ErrNotFound)
	}
	dir := e.directory(id)
	r, err := dir.readRecord()
	return dir, r, err
}
