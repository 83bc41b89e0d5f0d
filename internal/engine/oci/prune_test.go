package oci

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/enginetest"
)

// pruneBench is an engine that has images and runs nothing.
type pruneBench struct {
	*Engine
	t        *testing.T
	registry string
}

func newPruneBench(t *testing.T) *pruneBench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: images keep the owners of their files")
	}
	config, err := testConfig(t, "", "/guest").complete()
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{config: config}
	for _, directory := range []string{e.sandboxesDir(), e.imagesDir(), e.referencesDir()} {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	e.images = newImageStore(config, e.imagesDir(), e.referencesDir())
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return &pruneBench{Engine: e, t: t, registry: enginetest.Registry(t)}
}

// pull pushes an image with that content and pulls it under each name.
func (b *pruneBench) pull(content string, names ...string) engine.Image {
	b.t.Helper()
	pushed := enginetest.Image(b.t, []tar.Header{enginetest.File("f", content)})
	var pulled engine.Image
	for _, name := range names {
		reference := b.registry + "/" + name
		enginetest.Push(b.t, reference, pushed)
		var err error
		if pulled, err = b.PullImage(b.t.Context(), engine.PullRequest{Reference: reference}, nil); err != nil {
			b.t.Fatal(err)
		}
	}
	return pulled
}

// use records a sandbox of the image, as the beginning of its creation does.
func (b *pruneBench) use(id string, image engine.Image) {
	b.t.Helper()
	dir := b.directory(id)
	err := os.Mkdir(string(dir), 0o700)
	if err == nil {
		err = dir.writeRecord(record{Spec: engine.Spec{ID: id, ImageDigest: image.Digest}})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// prune answers with the digests of what was removed.
func (b *pruneBench) prune() []string {
	b.t.Helper()
	pruned, err := b.PruneImages(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	var digests []string
	for _, image := range pruned {
		digests = append(digests, image.Digest)
	}
	return digests
}

func (b *pruneBench) wantPruned(want ...engine.Image) {
	b.t.Helper()
	got := b.prune()
	if len(got) != len(want) {
		b.t.Errorf("%d images were removed, want %d: %v", len(got), len(want), got)
		return
	}
	for i, image := range want {
		if got[i] != image.Digest {
			b.t.Errorf("%s was removed, want %s", got[i], image.Digest)
		}
	}
}

// wantFiles counts what is in the directories of images and references.
func (b *pruneBench) wantFiles(images, references int) {
	b.t.Helper()
	for directory, want := range map[string]int{b.imagesDir(): images, b.referencesDir(): references} {
		entries, err := os.ReadDir(directory)
		if err != nil || len(entries) != want {
			b.t.Errorf("%s has %d entries, %v; want %d", directory, len(entries), err, want)
		}
	}
}

func TestAPruneRemovesTheImagesThatNoSandboxUses(t *testing.T) {
	b := newPruneBench(t)
	used, unused := b.pull("used", "used:1"), b.pull("unused", "unused:1", "unused:2")
	b.use("sandbox-1", used)
	b.wantPruned(unused)
	b.wantFiles(1, 1)
	if left, err := b.Images(t.Context()); err != nil || len(left) != 1 || left[0].Digest != used.Digest || left[0].SandboxCount != 1 {
		t.Errorf("Images() = %+v, %v; want the one in use", left, err)
	}
	if _, err := b.images.rootfs(unused.Digest); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("the removed image: %v; want ErrNotFound", err)
	}
	b.wantPruned()

	if err := os.RemoveAll(string(b.directory("sandbox-1"))); err != nil {
		t.Fatal(err)
	}
	b.wantPruned(used)
	b.wantFiles(0, 0)
}

func TestAPrunedImageIsPulledAgain(t *testing.T) {
	b := newPruneBench(t)
	image := b.pull("again", "again:1")
	b.wantPruned(image)
	if got := b.pull("again", "again:1"); got.Digest != image.Digest {
		t.Errorf("pulled %s, want %s", got.Digest, image.Digest)
	}
	rootfs, err := b.images.rootfs(image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(rootfs, "f")); err != nil || string(content) != "again" {
		t.Errorf("its file holds %q, %v", content, err)
	}
}

// TestAnImageThatGetsAUserMeanwhileStays: between the look and the removal a
// sandbox was begun.
func TestAnImageThatGetsAUserMeanwhileStays(t *testing.T) {
	b := newPruneBench(t)
	image := b.pull("wanted", "wanted:1")
	listed, err := b.Images(t.Context())
	if err != nil || len(listed) != 1 || listed[0].SandboxCount != 0 {
		t.Fatalf("Images() = %+v, %v", listed, err)
	}
	b.use("sandbox-1", image)
	if removed, err := b.pruneImage(listed[0]); err != nil || removed {
		t.Errorf("pruneImage() = %t, %v; want it kept", removed, err)
	}
	if _, err := b.images.rootfs(image.Digest); err != nil {
		t.Errorf("the image is gone: %v", err)
	}
	b.wantFiles(1, 1)
}

// TestAnImageThatAnotherProcessWorksOnIsLeftToIt: it holds the lock.
func TestAnImageThatAnotherProcessWorksOnIsLeftToIt(t *testing.T) {
	b := newPruneBench(t)
	image := b.pull("locked", "locked:1")
	directory, err := b.images.imageDir(image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := tryLockDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	b.wantPruned()
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	b.wantPruned(image)
}

// TestAPruneThatWasKilledIsFinished: the image was hidden already.
func TestAPruneThatWasKilledIsFinished(t *testing.T) {
	b := newPruneBench(t)
	image := b.pull("half gone", "half:1")
	_, lock, err := b.images.hide(image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel lets go of a dead process's lock.
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.images.removeLeftovers(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.images.resolved(canonicalFor(t, b, "half:1")); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("its reference leads to %v; want ErrNotFound", err)
	}
	if got := b.pull("half gone", "half:1"); got.Digest != image.Digest {
		t.Errorf("pulled %s, want %s", got.Digest, image.Digest)
	}
	b.wantFiles(1, 1)
}

func canonicalFor(t *testing.T, b *pruneBench, name string) string {
	t.Helper()
	reference, err := b.config.parseReference(b.registry + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return canonicalReference(reference)
}
