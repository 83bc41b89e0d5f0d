package oci

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// BenchmarkCreate compares Create, until the guest answers, with the floor: the
// runtime's own command, run on a bundle that is ready, until it returns. The
// two take turns, so that they see the same machine.
func BenchmarkCreate(b *testing.B) {
	for _, name := range []string{"runc", "crun", "runsc"} {
		for label, network := range map[string]engine.Network{
			"isolated":  {},
			"connected": {DNS: true, Egress: []engine.EgressRule{{Any: true}}},
		} {
			b.Run(name+"/"+label, func(b *testing.B) { benchmarkCreate(b, name, network) })
		}
	}
}

func benchmarkCreate(b *testing.B, name string, network engine.Network) {
	e, image := benchmarkEngine(b, name)
	var floor, ours, removal time.Duration
	for i := 0; b.Loop(); i++ {
		floor += rawRun(b, e, fmt.Sprintf("raw-%06d", i), image)
		id := fmt.Sprintf("box-%06d", i)
		begin := time.Now()
		if err := e.Create(b.Context(), engine.Spec{ID: id, ImageDigest: image.Digest, Network: network}); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(begin)
		begin = time.Now()
		if err := e.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		removal += time.Since(begin)
	}
	n := float64(b.N)
	b.ReportMetric(float64(floor.Microseconds())/1000/n, "floor-ms/op")
	b.ReportMetric(float64(ours.Microseconds())/1000/n, "create-ms/op")
	b.ReportMetric(float64(removal.Microseconds())/1000/n, "remove-ms/op")
	b.ReportMetric(float64(ours)/float64(floor), "create/floor")
}

// rawRun times the runtime alone on a bundle like the engine's.
func rawRun(b *testing.B, e *Engine, id string, image engine.Image) time.Duration {
	b.Helper()
	dir := e.directory(id)
	if err := os.Mkdir(string(dir), 0o700); err != nil {
		b.Fatal(err)
	}
	spec := engine.Spec{ID: id, ImageDigest: image.Digest, Hostname: id}
	if err := dir.writeRecord(record{Spec: spec}); err != nil {
		b.Fatal(err)
	}
	rootfs, err := e.images.rootfs(image.Digest)
	if err != nil {
		b.Fatal(err)
	}
	if err := mountRootfs(dir, rootfs); err != nil {
		b.Fatal(err)
	}
	if err := mountControl(dir); err != nil {
		b.Fatal(err)
	}
	if err := e.specs.write(dir, spec, false); err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	if _, err := e.runtime.run(b.Context(), dir, id, true); err != nil {
		b.Fatal(err)
	}
	elapsed := time.Since(begin)
	if err := e.Remove(b.Context(), id); err != nil {
		b.Fatal(err)
	}
	return elapsed
}

func benchmarkEngine(b *testing.B, name string) (*Engine, engine.Image) {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	if _, err := lookRuntime(name, systemPath); err != nil {
		b.Skipf("needs %s: %v", name, err)
	}
	guest := filepath.Join(b.TempDir(), "guest")
	build := exec.Command("go", "build", "-o", guest, "../enginetest/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the guest: %v: %s", err, output)
	}
	e, err := New(b.Context(), Config{
		DataDir: filepath.Join(b.TempDir(), "data"), Name: uniqueName(), GuestPath: guest, Runtime: name,
		Resolvers: []netip.Addr{netip.MustParseAddr("198.51.100.53")},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Uninstall(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	return e, pullTestImage(b, e)
}
