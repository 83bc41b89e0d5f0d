package oci

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// restoreFirewall admits every running sandbox again, as another tool may have
// flushed the host's rules. Until then such a sandbox's packets pass unchecked,
// and between the table and its own rules it reaches nothing. What is as it
// should be stays so.
func (e *Engine) restoreFirewall() error {
	ids, err := e.sandboxIDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := e.readmit(id); err != nil {
			return fmt.Errorf("restore the firewall for sandbox %s: %w", id, err)
		}
	}
	return nil
}

// readmit leaves alone what somebody else works on, and what does not run or is
// not connected.
func (e *Engine) readmit(id string) error {
	dir := e.directory(id)
	lock, err := tryLockDir(string(dir))
	if errors.Is(err, errLocked) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := dir.readRecord()
	connected := err == nil && r.Address.IsValid()
	if !connected {
		// List says so when it is a broken one.
		return nil
	}
	if err := r.running(); err != nil {
		return ignoreNotRunning(err)
	}
	return e.firewall.admit(id, r.Address, r.Spec.Network)
}

func ignoreNotRunning(err error) error {
	if errors.Is(err, engine.ErrNotRunning) {
		return nil
	}
	return err
}
