package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// imageStore keeps images as directories, each layer already laid over those
// below it:
//
//	images/<hex digest>/image.json     written last; without it there is no image
//	images/<hex digest>/rootfs/
//	images/.pull-*, images/.prune-*    work in progress, locked by who does it
//	references/<hash>.json             which digest a reference meant last
type imageStore struct {
	dir           string
	referencesDir string
	now           func() time.Time
	logger        *slog.Logger
	registry      *registryClient
	pulls         *flights
}

// storedImage is the content of image.json.
type storedImage struct {
	Digest    string             `json:"digest"`
	SizeBytes int64              `json:"sizeBytes"`
	PullTime  time.Time          `json:"pullTime"`
	Config    engine.ImageConfig `json:"config"`
}

// storedReference is what a reference meant when it was last resolved.
type storedReference struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
}

func newImageStore(config Config, dir, referencesDir string) *imageStore {
	return &imageStore{
		dir: dir, referencesDir: referencesDir, now: config.Now, logger: config.Logger,
		registry: newRegistryClient(config), pulls: newFlights(),
	}
}

func (s *imageStore) close() { s.pulls.wait() }

func (s *imageStore) imageDir(digest string) (string, error) {
	hash, err := v1.NewHash(digest)
	if err != nil {
		return "", fmt.Errorf("image digest %q: %w", digest, engine.ErrImageInvalid)
	}
	return filepath.Join(s.dir, hash.Hex), nil
}

// image reads what is stored; engine.ErrNotFound when there is nothing.
func (s *imageStore) image(digest string) (storedImage, error) {
	dir, err := s.imageDir(digest)
	if err != nil {
		return storedImage{}, err
	}
	var image storedImage
	if err := readJSON(filepath.Join(dir, "image.json"), &image); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return storedImage{}, fmt.Errorf("image %s: %w", digest, engine.ErrNotFound)
		}
		return storedImage{}, fmt.Errorf("image %s: %w", digest, err)
	}
	return image, nil
}

// rootfs is where an image's files are; engine.ErrNotFound when it is not here.
func (s *imageStore) rootfs(digest string) (string, error) {
	if _, err := s.image(digest); err != nil {
		return "", err
	}
	dir, err := s.imageDir(digest)
	return filepath.Join(dir, "rootfs"), err
}

func (s *imageStore) referencePath(reference string) string {
	return filepath.Join(s.referencesDir, shortID(reference, 32)+".json")
}

// resolved answers what a reference meant when it was last pulled, if that
// image is still here.
func (s *imageStore) resolved(reference string) (storedImage, error) {
	var stored storedReference
	if err := readJSON(s.referencePath(reference), &stored); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return storedImage{}, engine.ErrNotFound
		}
		return storedImage{}, err
	}
	return s.image(stored.Digest)
}

func (s *imageStore) refer(reference, digest string) error {
	data, err := json.Marshal(storedReference{Reference: reference, Digest: digest})
	if err != nil {
		return err
	}
	if err := replaceFileDurably(s.referencePath(reference), data); err != nil {
		return fmt.Errorf("record reference %s: %w", reference, noSpace(err))
	}
	return nil
}

// references lists the references of each digest.
func (s *imageStore) references() (map[string][]string, error) {
	paths, err := filepath.Glob(filepath.Join(s.referencesDir, "*.json"))
	if err != nil {
		return nil, err
	}
	byDigest := make(map[string][]string)
	for _, path := range paths {
		var stored storedReference
		if err := readJSON(path, &stored); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, err
		}
		byDigest[stored.Digest] = append(byDigest[stored.Digest], stored.Reference)
	}
	return byDigest, nil
}

func (i storedImage) describe(references []string, sandboxes int) engine.Image {
	return engine.Image{
		Digest: i.Digest, References: references, SizeBytes: i.SizeBytes, PullTime: i.PullTime,
		SandboxCount: sandboxes, Config: i.Config,
	}
}

// all lists the images, newest first.
func (s *imageStore) all() ([]storedImage, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var images []storedImage
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		var image storedImage
		if err := readJSON(filepath.Join(s.dir, entry.Name(), "image.json"), &image); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, err
		}
		images = append(images, image)
	}
	slices.SortFunc(images, func(a, b storedImage) int {
		if c := b.PullTime.Compare(a.PullTime); c != 0 {
			return c
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return images, nil
}

// hide takes an image out of the store without removing its files yet, and
// holds the lock on them. put brings it back.
func (s *imageStore) hide(digest string) (hidden string, lock *os.File, err error) {
	dir, err := s.imageDir(digest)
	if err != nil {
		return "", nil, err
	}
	lock, err = tryLockDir(dir)
	if err != nil {
		return "", nil, err
	}
	hidden = filepath.Join(s.dir, ".prune-"+filepath.Base(dir))
	if err := os.Rename(dir, hidden); err != nil {
		_ = lock.Close()
		return "", nil, err
	}
	return hidden, lock, nil
}

func (s *imageStore) put(hidden, digest string) error {
	dir, err := s.imageDir(digest)
	if err != nil {
		return err
	}
	return os.Rename(hidden, dir)
}

// removeLeftovers clears away what killed processes had begun.
func (s *imageStore) removeLeftovers() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("look for unfinished pulls: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		path := filepath.Join(s.dir, entry.Name())
		lock, err := tryLockDir(path)
		if errors.Is(err, errLocked) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for unfinished pulls: %w", err)
		}
		err = os.RemoveAll(path)
		_ = lock.Close()
		if err != nil {
			return fmt.Errorf("remove an unfinished pull: %w", err)
		}
	}
	return nil
}

// Images lists the images that are here, newest first.
func (e *Engine) Images(context.Context) ([]engine.Image, error) {
	images, err := e.images.all()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	references, err := e.images.references()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	users, err := e.imageUsers()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	described := make([]engine.Image, 0, len(images))
	for _, image := range images {
		described = append(described, image.describe(references[image.Digest], users[image.Digest]))
	}
	return described, nil
}

// PruneImages removes the images that no sandbox uses. A sandbox records its
// image before it looks for it; so an image is hidden first, then the records
// are read again, and one that has got a user meanwhile comes back.
func (e *Engine) PruneImages(ctx context.Context) ([]engine.Image, error) {
	images, err := e.Images(ctx)
	if err != nil {
		return nil, fmt.Errorf("prune images: %w", err)
	}
	var pruned []engine.Image
	for _, image := range images {
		if image.SandboxCount > 0 {
			continue
		}
		removed, err := e.pruneImage(image)
		if err != nil {
			return pruned, fmt.Errorf("prune image %s: %w", image.Digest, err)
		}
		if removed {
			pruned = append(pruned, image)
		}
	}
	return pruned, nil
}

func (e *Engine) pruneImage(image engine.Image) (removed bool, err error) {
	hidden, lock, err := e.images.hide(image.Digest)
	if errors.Is(err, errLocked) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	users, err := e.imageUsers()
	if err != nil || users[image.Digest] > 0 {
		return false, errors.Join(err, e.images.put(hidden, image.Digest))
	}
	for _, reference := range image.References {
		if err := os.Remove(e.images.referencePath(reference)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, os.RemoveAll(hidden)
}

// imageUsers counts the sandboxes of each image.
func (e *Engine) imageUsers() (map[string]int, error) {
	ids, err := e.sandboxIDs()
	if err != nil {
		return nil, err
	}
	users := make(map[string]int)
	for _, id := range ids {
		if r, err := e.directory(id).readRecord(); err == nil {
			users[r.Spec.ImageDigest]++
		}
	}
	return users, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// replaceFileDurably is replaceFile for what must survive the machine.
func replaceFileDurably(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// syncTree writes everything on a directory's file system to the disk.
func syncTree(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}
