package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const forwardingSwitch = "/proc/sys/net/ipv4/ip_forward"

// forwarding turns the host's IP forwarding on when the first sandbox needs it,
// and back to what it was when the last engine on the host is uninstalled.
type forwarding struct {
	stateDir string
	name     string

	once onceUntilDone
}

// forwardingState is shared by the engines of a host.
type forwardingState struct {
	Before  string   `json:"before"`
	Engines []string `json:"engines"`
}

func (f *forwarding) path() string { return filepath.Join(f.stateDir, "forwarding.json") }

func (f *forwarding) enable(ctx context.Context) error {
	return f.once.do(func() error {
		return f.update(ctx, func(state *forwardingState) error {
			current, err := os.ReadFile(forwardingSwitch)
			if err != nil {
				return err
			}
			if len(state.Engines) == 0 {
				state.Before = strings.TrimSpace(string(current))
			}
			if !slices.Contains(state.Engines, f.name) {
				state.Engines = append(state.Engines, f.name)
			}
			// The record comes first: a change that nobody knows of would stay.
			if err := f.write(*state); err != nil {
				return err
			}
			return writeExisting(forwardingSwitch, "1")
		})
	})
}

func (f *forwarding) restore(ctx context.Context) error {
	if _, err := os.Stat(f.path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return f.update(ctx, func(state *forwardingState) error {
		i := slices.Index(state.Engines, f.name)
		if i < 0 {
			return nil
		}
		state.Engines = slices.Delete(state.Engines, i, i+1)
		if len(state.Engines) > 0 {
			return f.write(*state)
		}
		if err := writeExisting(forwardingSwitch, state.Before); err != nil {
			return err
		}
		return os.Remove(f.path())
	})
}

// update holds the host's lock while change works on the state.
func (f *forwarding) update(ctx context.Context, change func(*forwardingState) error) error {
	if err := os.MkdirAll(f.stateDir, 0o700); err != nil {
		return fmt.Errorf("make the host's state directory: %w", err)
	}
	lock, err := lockDir(ctx, f.stateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	var state forwardingState
	data, err := os.ReadFile(f.path())
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", f.path(), err)
	}
	if err := change(&state); err != nil {
		return fmt.Errorf("IP forwarding: %w", err)
	}
	return nil
}

func (f *forwarding) write(state forwardingState) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return replaceFile(f.path(), data)
}
