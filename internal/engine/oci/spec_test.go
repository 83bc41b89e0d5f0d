package oci

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbar-project/sandbar/internal/engine"
)

func TestTheSystemCallFilterIsForTheMachinesOwnArchitecture(t *testing.T) {
	own, ok := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[runtime.GOARCH]
	if !ok {
		t.Skipf("knows no name for %s", runtime.GOARCH)
	}
	builder := specBuilder{runtime: *findRuntimeKind("runc"), bounding: knownCapabilities[:]}
	built, err := builder.build(directory(t.TempDir()), engine.Spec{ID: "box"}, false)
	if err != nil {
		t.Fatal(err)
	}
	filter := built.Linux.Seccomp
	if filter == nil || filter.DefaultAction != specs.ActErrno {
		t.Fatalf("filter %+v: expected one that refuses what it does not name", filter)
	}
	if diff := cmp.Diff([]specs.Arch{own}, filter.Architectures); diff != "" {
		t.Errorf("architectures (-want +got):\n%s", diff)
	}
}
