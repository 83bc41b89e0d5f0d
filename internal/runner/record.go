package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

// record is what is kept of a sandbox on disk. It holds the environment of
// its processes, so its file is readable by the runner only.
type record struct {
	SandboxID      string
	OrganizationID string
	// Generation grows with every change.
	Generation int64
	Status     *sandboxv1.SandboxStatus
	// Request is kept while the sandbox is CREATING, so that another process
	// can go on with it.
	Request *runnerv1.CreateSandboxRequest
	// Container is the name of the primary container.
	Container string
	// Process is how the main process was started; execs inherit from it.
	Process  process
	Reserved amount
	// Deadline is when the lifetime ends.
	Deadline time.Time
	// StopReason and KillTime are set with a stop: why, and when SIGKILL is due.
	StopReason string
	KillTime   time.Time
}

// storedRecord is the file's form.
type storedRecord struct {
	SandboxID      string          `json:"sandbox_id"`
	OrganizationID string          `json:"organization_id"`
	Generation     int64           `json:"generation"`
	Status         json.RawMessage `json:"status"`
	// Request is in protobuf's binary form, because it may carry files.
	Request    []byte    `json:"request,omitempty"`
	Container  string    `json:"container"`
	Process    process   `json:"process,omitzero"`
	Reserved   amount    `json:"reserved"`
	Deadline   time.Time `json:"deadline"`
	StopReason string    `json:"stop_reason,omitempty"`
	KillTime   time.Time `json:"kill_time,omitzero"`
}

func (r record) message() *runnerv1.SandboxRecord {
	return &runnerv1.SandboxRecord{
		SandboxId:      r.SandboxID,
		OrganizationId: r.OrganizationID,
		Status:         proto.CloneOf(r.Status),
		Generation:     r.Generation,
	}
}

func (r record) encode() ([]byte, error) {
	status, err := protojson.Marshal(r.Status)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	stored := storedRecord{
		SandboxID:      r.SandboxID,
		OrganizationID: r.OrganizationID,
		Generation:     r.Generation,
		Status:         status,
		Container:      r.Container,
		Process:        r.Process,
		Reserved:       r.Reserved,
		Deadline:       r.Deadline,
		StopReason:     r.StopReason,
		KillTime:       r.KillTime,
	}
	if r.Request != nil {
		if stored.Request, err = proto.Marshal(r.Request); err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
	}
	return json.Marshal(stored)
}

func decodeRecord(data []byte) (record, error) {
	var stored storedRecord
	if err := json.Unmarshal(data, &stored); err != nil {
		return record{}, err
	}
	r := record{
		SandboxID:      stored.SandboxID,
		OrganizationID: stored.OrganizationID,
		Generation:     stored.Generation,
		Status:         &sandboxv1.SandboxStatus{},
		Container:      stored.Container,
		Process:        stored.Process,
		Reserved:       stored.Reserved,
		Deadline:       stored.Deadline,
		StopReason:     stored.StopReason,
		KillTime:       stored.KillTime,
	}
	if err := protojson.Unmarshal(stored.Status, r.Status); err != nil {
		return record{}, fmt.Errorf("decode status: %w", err)
	}
	if len(stored.Request) > 0 {
		r.Request = &runnerv1.CreateSandboxRequest{}
		if err := proto.Unmarshal(stored.Request, r.Request); err != nil {
			return record{}, fmt.Errorf("decode request: %w", err)
		}
	}
	return r, nil
}

// sandboxID is what an id may look like: it becomes a directory's name and
// the engine's.
var sandboxID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// records keeps one directory per sandbox:
//
//	ID/record.json  the record
//	ID/output/      the main process's output
type records struct {
	dir string
}

func openRecords(dir string) (records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return records{}, fmt.Errorf("open sandbox records: %w", err)
	}
	return records{dir: dir}, nil
}

func (s records) recordPath(id string) string { return filepath.Join(s.dir, id, "record.json") }

func (s records) outputDir(id string) string { return filepath.Join(s.dir, id, "output") }

// create makes the sandbox's directory and its first record.
func (s records) create(r record) error {
	if err := os.Mkdir(filepath.Join(s.dir, r.SandboxID), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create sandbox record: %w", err)
	}
	if err := s.put(r); err != nil {
		return err
	}
	return syncDirectory(s.dir)
}

// put replaces the record.
func (s records) put(r record) error {
	data, err := r.encode()
	if err != nil {
		return fmt.Errorf("encode sandbox record: %w", err)
	}
	return writeDurably(s.recordPath(r.SandboxID), data)
}

// remove takes away everything that is kept of a sandbox.
func (s records) remove(id string) error {
	// The record goes first: what is left of a directory without one is
	// rubbish, which load removes.
	if err := os.Remove(s.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove sandbox record: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, id)); err != nil {
		return fmt.Errorf("remove sandbox record: %w", err)
	}
	return syncDirectory(s.dir)
}

// load reads every record and removes what an interrupted create or remove
// left. A record that cannot be read is an error: it stands for a sandbox.
func (s records) load() ([]record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("load sandbox records: %w", err)
	}
	var all []record
	for _, entry := range entries {
		id := entry.Name()
		if err := s.removeUnfinished(id); err != nil {
			return nil, fmt.Errorf("load sandbox records: %w", err)
		}
		data, err := os.ReadFile(s.recordPath(id))
		if errors.Is(err, fs.ErrNotExist) {
			err = s.remove(id)
			if err != nil {
				return nil, fmt.Errorf("load sandbox records: %w", err)
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("load sandbox records: %w", err)
		}
		r, err := decodeRecord(data)
		if err != nil {
			return nil, fmt.Errorf("load sandbox record %s: %w", s.recordPath(id), err)
		}
		all = append(all, r)
	}
	return all, nil
}

// removeUnfinished removes the files of interrupted writes.
func (s records) removeUnfinished(id string) error {
	unfinished, err := filepath.Glob(filepath.Join(s.dir, id, ".new-*"))
	if err != nil {
		return err
	}
	for _, path := range unfinished {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
