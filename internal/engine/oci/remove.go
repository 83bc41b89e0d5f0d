package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Remove ends a sandbox and takes away all that was made for it. It waits for
// whoever is at work on the sandbox.
func (e *Engine) Remove(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return nil
	}
	dir := e.directory(id)
	lock, err := lockDir(ctx, string(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	defer lock.Close()
	if err := e.takeAway(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// takeAway asks no runtime: everything is the kernel's or lies in the sandbox's
// directory, so it works whatever the runtime had got round to. The caller holds
// the lock. The directory goes last and only when all else has gone.
func (e *Engine) takeAway(ctx context.Context, id string) error {
	dir := e.directory(id)
	// A record that cannot be read costs a search and nothing else.
	r, recordErr := dir.readRecord()
	if err := e.endProcesses(ctx, dir, id, r); err != nil {
		return err
	}
	e.step("ended")
	var group errgroup.Group
	group.Go(func() error { return e.cgroups.remove(ctx, e.cgroup(id)) })
	group.Go(func() error {
		for _, path := range dir.mounts() {
			if err := unmountAll(path); err != nil {
				return err
			}
		}
		e.step("unmounted")
		return nil
	})
	connected := recordErr != nil || r.Spec.Network.DNS || len(r.Spec.Network.Egress) > 0
	if connected {
		group.Go(func() error {
			return errors.Join(e.network.detach(id), e.firewall.revoke(id, r.Address))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	e.step("released")
	for {
		err := os.RemoveAll(string(dir))
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EBUSY):
			// A runtime has mounted something that nobody knew of.
			err = unmountBelow(string(dir))
		case errors.Is(err, unix.ENOTEMPTY):
			// A runtime that was cut short has not ended everywhere yet.
			err = e.endProcesses(ctx, dir, id, record{})
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("remove the sandbox's directory: %w", err)
		}
	}
}

func (e *Engine) endProcesses(ctx context.Context, dir directory, id string, r record) error {
	if r.Process != nil {
		if err := r.Process.kill(ctx); err != nil {
			return err
		}
	}
	if err := e.cgroups.kill(ctx, e.cgroup(id)); err != nil {
		return err
	}
	if r.Process == nil {
		// A runtime that was cut short may have started something that is not in
		// the sandbox's cgroup yet.
		return killRuntimeProcesses(ctx, string(dir))
	}
	return nil
}

// List tells of every sandbox but those that somebody, in this process or
// another, makes or removes at this moment.
func (e *Engine) List(context.Context) ([]engine.Sandbox, error) {
	ids, err := e.sandboxIDs()
	if err != nil {
		return nil, err
	}
	var sandboxes []engine.Sandbox
	for _, id := range ids {
		sandbox, busy, err := e.look(id)
		if err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		if !busy {
			sandboxes = append(sandboxes, sandbox)
		}
	}
	return sandboxes, nil
}

// look says how one sandbox stands, or that it is being worked on or has gone.
func (e *Engine) look(id string) (sandbox engine.Sandbox, busy bool, err error) {
	dir := e.directory(id)
	lock, err := tryLockDir(string(dir))
	if errors.Is(err, errLocked) || errors.Is(err, fs.ErrNotExist) {
		return engine.Sandbox{}, true, nil
	}
	if err != nil {
		return engine.Sandbox{}, false, err
	}
	defer lock.Close()
	sandbox = engine.Sandbox{ID: id, State: engine.StateBroken}
	r, err := dir.readRecord()
	if err != nil {
		return sandbox, false, nil // without a readable record it is broken
	}
	sandbox.Labels = r.Spec.Labels
	sandbox.IP = r.Address
	if r.Process == nil {
		return sandbox, false, nil
	}
	alive, err := r.Process.alive()
	if err != nil {
		return engine.Sandbox{}, false, err
	}
	if alive {
		sandbox.State = engine.StateRunning
	} else {
		sandbox.State = engine.StateExited
	}
	return sandbox, false, nil
}

func (e *Engine) sandboxIDs() ([]string, error) {
	entries, err := os.ReadDir(e.sandboxesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	ids := make([]string, 0, len(entries))
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids, nil
}
