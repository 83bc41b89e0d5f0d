package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const forwardingSwitch = "/proc/sys/net/ipv4/ip_forward"

// forwarding turns the host's IP forwarding on when the first sandbox needs it,
// and back to what it was when the last engine on the host is uninstalled. The
// engines of a host find each other through a file: an engine that kept its own
// account would take what another one has set for what the host had.
type forwarding struct {
	// stateDir is shared by all engines of the host.
	stateDir string
	name     string
	// dataDir is there as long as the engine may have sandboxes. An engine that
	// lost it without being uninstalled holds nothing up.
	dataDir string

	once onceUntilDone
}

// forwardingState is shared by the engines of a host. As long as the file is
// there, the switch may be other than Before.
type forwardingState struct {
	Before string `json:"before"`
	// Engines are those that need it: the data directory by the name.
	Engines map[string]string `json:"engines"`
}

// path is of the network namespace that this thread is in: each has a switch
// of its own.
func (f *forwarding) path() (string, error) {
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &namespace); err != nil {
		return "", fmt.Errorf("find out the network namespace: %w", err)
	}
	return filepath.Join(f.stateDir, fmt.Sprintf("forwarding-%d.json", namespace.Ino)), nil
}

func (f *forwarding) enable(ctx context.Context) error {
	return f.once.do(func() error {
		return f.update(ctx, func(path string, state *forwardingState) error {
			if state.Before == "" {
				current, err := os.ReadFile(forwardingSwitch)
				if err != nil {
					return err
				}
				state.Before = strings.TrimSpace(string(current))
			}
			if state.Engines == nil {
				state.Engines = map[string]string{}
			}
			state.Engines[f.name] = f.dataDir
			// The record comes first: a change that nobody knows of would stay.
			if err := writeForwarding(path, *state); err != nil {
				return err
			}
			return writeExisting(forwardingSwitch, "1")
		})
	})
}

func (f *forwarding) restore(ctx context.Context) error {
	return f.update(ctx, func(path string, state *forwardingState) error {
		if state.Before == "" {
			return nil
		}
		delete(state.Engines, f.name)
		if len(state.Engines) > 0 {
			return writeForwarding(path, *state)
		}
		if err := writeExisting(forwardingSwitch, state.Before); err != nil {
			return err
		}
		return os.Remove(path)
	})
}

// update holds the host's lock while change works on the state, from which
// engines are missing that have gone.
func (f *forwarding) update(ctx context.Context, change func(path string, state *forwardingState) error) error {
	path, err := f.path()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.stateDir, 0o700); err != nil {
		return fmt.Errorf("make the host's state directory: %w", err)
	}
	lock, err := lockDir(ctx, f.stateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	var state forwardingState
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for name, dataDir := range state.Engines {
		if _, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
			delete(state.Engines, name)
		}
	}
	if err := change(path, &state); err != nil {
		return fmt.Errorf("IP forwarding: %w", err)
	}
	return nil
}

func writeForwarding(path string, state forwardingState) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return replaceFile(path, data)
}
