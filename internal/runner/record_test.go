package runner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	kept, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	want := record{
		SandboxID: "a", OrganizationID: "org", Generation: 7,
		Status:     &sandboxv1.SandboxStatus{State: sandboxv1.State_STATE_CREATING, ExitCode: proto.Int32(0)},
		Request:    &runnerv1.CreateSandboxRequest{SandboxId: "a", Spec: shell("true")},
		Container:  "main",
		Process:    process{Argv: []string{"x"}, Env: []string{"A=1"}, WorkingDir: "/", User: "0"},
		Reserved:   amount{CPUMillis: 1, MemoryBytes: 2, GPUCount: 3},
		Deadline:   at,
		StopReason: "why", KillTime: at.Add(time.Second),
	}
	if err := kept.create(want); err != nil {
		t.Fatal(err)
	}
	got, err := kept.load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]record{want}, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(kept.recordPath("a")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record's file: %v, %v", info.Mode(), err)
	}
}

func TestInterruptedWritesLeaveNothing(t *testing.T) {
	kept, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	whole := record{SandboxID: "whole", Status: &sandboxv1.SandboxStatus{}}
	if err := kept.create(whole); err != nil {
		t.Fatal(err)
	}
	// A create that had not come to its record, and a put that had not come to
	// its rename.
	if err := os.MkdirAll(kept.outputDir("begun"), 0o700); err != nil {
		t.Fatal(err)
	}
	unfinished := filepath.Join(kept.dir, "whole", ".new-1")
	if err := os.WriteFile(unfinished, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := kept.load()
	if err != nil || len(got) != 1 || got[0].SandboxID != "whole" {
		t.Errorf("loaded %v, %v", got, err)
	}
	for _, path := range []string{unfinished, filepath.Join(kept.dir, "begun")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
