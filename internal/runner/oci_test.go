package runner

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/oci"
)

// ociMachine is how to open the real engine.
type ociMachine struct {
	DataDir, Name, Guest string
}

func (m ociMachine) open(ctx context.Context) (*oci.Engine, error) {
	return oci.New(ctx, oci.Config{
		DataDir: m.DataDir, Name: m.Name, GuestPath: m.Guest, Runtime: os.Getenv("SANDBAR_TEST_RUNTIME"),
	})
}

// newOCIBench is a bench whose machine is this one.
func newOCIBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("needs a static busybox at /bin/busybox")
	}
	b.oci = &ociMachine{
		DataDir: filepath.Join(b.dir, "oci"), Name: fmt.Sprintf("runner-test-%d", os.Getpid()), Guest: filepath.Join(b.dir, "sandbar-guest"),
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", b.oci.Guest, "github.com/sandbar-project/sandbar/cmd/sandbar-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest: %v\n%s", err, out)
	}
	opened, err := b.oci.open(t.Context())
	if errors.Is(err, engine.ErrRuntimeUnavailable) {
		t.Skipf("needs a container runtime: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.machine = opened
	t.Cleanup(func() {
		found, err := opened.List(context.Background())
		for _, sandbox := range found {
			err = errors.Join(err, opened.Remove(context.Background(), sandbox.ID))
		}
		if err := errors.Join(err, opened.Uninstall(context.Background()), opened.Close()); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	b.image = strings.TrimPrefix(server.URL, "http://") + "/busybox:1"
	pushImage(t, b.image, busybox)
	return b
}

// pushImage makes an image of busybox and nothing else.
func pushImage(t *testing.T, reference string, busybox []byte) {
	t.Helper()
	var layer bytes.Buffer
	files := tar.NewWriter(&layer)
	add := func(header *tar.Header, content []byte) {
		header.Size = int64(len(content))
		if err := files.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "tmp/", "proc/", "dev/", "sys/"} {
		add(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, busybox)
	for _, applet := range []string{"sh", "sleep", "echo", "cat", "head", "tail", "nproc"} {
		add(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, made)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: "amd64", OS: "linux",
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(t, image)},
		Config: v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
}

func diffIDs(t *testing.T, image v1.Image) []v1.Hash {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.RootFS.DiffIDs
}

func TestRealSandboxes(t *testing.T) {
	b := newOCIBench(t)
	client, _ := b.serve()
	began := time.Now()
	id := b.mustRun(client, 1, shell("echo up; sleep 1000"))
	t.Logf("the first sandbox, with its pull, took %v", time.Since(began))
	began = time.Now()
	b.mustRun(client, 2, shell("echo up; sleep 1000"))
	t.Logf("the second took %v", time.Since(began))
	began = time.Now()
	if got := b.run(client, id, "echo", "hello"); got.Stdout != "hello\n" || got.Code != 0 {
		t.Errorf("exec answers %+v", got)
	}
	t.Logf("an exec took %v", time.Since(began))
	if got, _ := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id}, ""); got != "up\n" {
		t.Errorf("logs %q", got)
	}
	if got := b.run(client, id, "no-such-program"); got.Code != 127 {
		t.Errorf("a missing program answers %+v", got)
	}
	began = time.Now()
	b.delete(client, id, 0)
	t.Logf("a delete took %v", time.Since(began))
	b.delete(client, newID(2), 0)

	b.create(client, 3, shell("exit 3"))
	if status := b.await(client, newID(3), ended); status.GetState() != sandboxv1.State_STATE_COMPLETED || status.GetExitCode() != 3 {
		t.Errorf("ended as %v", status)
	}
	b.create(client, 4, shell("a=0123456789abcdef; while true; do a=$a$a; done"))
	if status := b.await(client, newID(4), ended); status.GetState() != sandboxv1.State_STATE_FAILED || !strings.HasPrefix(status.GetStateReason(), "OOM killed") {
		t.Errorf("the memory hog ended as %v", status)
	}
	b.delete(client, newID(3), 0)
	b.delete(client, newID(4), 0)
	b.nothingLeft()
}

func TestKilledRunnerLosesAndLeaksNoRealSandbox(t *testing.T) {
	b := newOCIBench(t)
	const rounds, within = 4, 1500 * time.Millisecond
	b.killAgainAndAgain(rounds, within)
}
