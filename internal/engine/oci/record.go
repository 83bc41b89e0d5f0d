package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// record is what is kept of a sandbox. It need not survive the machine, only
// the process: a reboot takes everything but the directory with it.
type record struct {
	Spec       engine.Spec `json:"spec"`
	CreateTime time.Time   `json:"createTime"`
	// Address is set before the firewall knows it.
	Address netip.Addr `json:"address,omitzero"`
	// Process is set once the guest has answered: a record without it is of a
	// sandbox that is half made.
	Process *process `json:"process,omitempty"`
}

// directory is the place of one sandbox on disk.
type directory string

func (d directory) record() string  { return filepath.Join(string(d), "sandbox.json") }
func (d directory) bundle() string  { return filepath.Join(string(d), "bundle") }
func (d directory) rootfs() string  { return filepath.Join(string(d), "bundle", "rootfs") }
func (d directory) upper() string   { return filepath.Join(string(d), "upper") }
func (d directory) work() string    { return filepath.Join(string(d), "work") }
func (d directory) control() string { return filepath.Join(string(d), "control") }
func (d directory) export() string  { return filepath.Join(string(d), "control", "export") }
func (d directory) private() string { return filepath.Join(string(d), "control", "private") }
func (d directory) runtime() string { return filepath.Join(string(d), "runtime") }
func (d directory) netns() string   { return filepath.Join(string(d), "netns") }
func (d directory) log() string     { return filepath.Join(string(d), "runtime.log") }
func (d directory) pidFile() string { return filepath.Join(string(d), "pid") }

// mounts are where something may be mounted: what the engine mounts, and the
// empty network namespace that runsc keeps for its file server.
func (d directory) mounts() []string {
	return []string{d.rootfs(), d.control(), d.netns(), filepath.Join(d.runtime(), "null-netns")}
}

func (d directory) writeRecord(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if err := replaceFile(d.record(), data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// readRecord answers engine.ErrNotFound when there is no record.
func (d directory) readRecord() (record, error) {
	data, err := os.ReadFile(d.record())
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, fmt.Errorf("sandbox %s: %w", filepath.Base(string(d)), engine.ErrNotFound)
	}
	if err != nil {
		return record{}, fmt.Errorf("read record: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("decode record: %w", err)
	}
	return r, nil
}

// replaceFile puts data at path so that a reader sees the old or the new, and
// never a part.
func replaceFile(path string, data []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
