package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	archive "github.com/moby/go-archive"
	"github.com/moby/go-archive/compression"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// parallelDownloads is how many layers of one image come at a time.
const parallelDownloads = 4

// PullImage makes an image available.
func (e *Engine) PullImage(ctx context.Context, request engine.PullRequest, progress func(engine.PullProgress)) (engine.Image, error) {
	image, err := e.images.pull(ctx, request, progress)
	if err != nil {
		return engine.Image{}, fmt.Errorf("pull %s: %w", request.Reference, err)
	}
	return image.describe(nil, 0), nil
}

func (s *imageStore) pull(ctx context.Context, request engine.PullRequest, progress func(engine.PullProgress)) (storedImage, error) {
	reference, err := s.registry.config.parseReference(request.Reference)
	if err != nil {
		return storedImage{}, err
	}
	canonical := canonicalReference(reference)
	if request.Policy == engine.PullIfNotPresent {
		image, err := s.resolved(canonical)
		if err == nil || !errors.Is(err, engine.ErrNotFound) {
			return image, err
		}
	}
	remote, from, err := s.registry.resolve(ctx, reference, request)
	if err != nil {
		return storedImage{}, err
	}
	image, err := s.fetched(ctx, remote, request, progress)
	if err != nil {
		if isOfRegistry(err) || ctx.Err() != nil {
			err = &engine.PullError{Reference: request.Reference, Attempts: []engine.PullAttempt{from.attempt(err)}}
		}
		return storedImage{}, err
	}
	return image, s.refer(canonical, image.Digest)
}

// fetched makes an image that a registry has available here.
func (s *imageStore) fetched(ctx context.Context, remote v1.Image, request engine.PullRequest, progress func(engine.PullProgress)) (storedImage, error) {
	digest, err := remote.Digest()
	if err != nil {
		return storedImage{}, registryError(err)
	}
	image, err := s.image(digest.String())
	if errors.Is(err, engine.ErrNotFound) {
		image, err = s.pulls.do(ctx, digest.String(), progress, func(ctx context.Context, report func(engine.PullProgress)) (storedImage, error) {
			return s.store(ctx, remote, digest, request.KeepFreeBytes, report)
		})
	}
	return image, err
}

// store downloads an image and puts it in its place in one step, once all of it
// is on the disk.
func (s *imageStore) store(ctx context.Context, remote v1.Image, digest v1.Hash, keepFree int64, report func(engine.PullProgress)) (storedImage, error) {
	// Others may have finished between the look and the start of this work.
	if image, err := s.image(digest.String()); !errors.Is(err, engine.ErrNotFound) {
		return image, err
	}
	work, err := os.MkdirTemp(s.dir, ".pull-*")
	if err != nil {
		return storedImage{}, noSpace(err)
	}
	lock, err := tryLockDir(work)
	if err != nil {
		return storedImage{}, err
	}
	defer lock.Close()
	image, err := s.fill(ctx, work, remote, digest, roomCheck{path: work, keep: keepFree}, report)
	if err == nil {
		err = s.publish(work, digest)
	}
	if err != nil {
		return storedImage{}, errors.Join(noSpace(err), os.RemoveAll(work))
	}
	return image, nil
}

func (s *imageStore) fill(ctx context.Context, work string, remote v1.Image, digest v1.Hash, room roomCheck, report func(engine.PullProgress)) (storedImage, error) {
	config, err := remote.ConfigFile()
	if err != nil {
		return storedImage{}, registryError(err)
	}
	rootfs := filepath.Join(work, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		return storedImage{}, err
	}
	size, err := s.unpack(ctx, work, rootfs, remote, room, report)
	if err != nil {
		return storedImage{}, err
	}
	image := storedImage{
		Digest: digest.String(), SizeBytes: size, PullTime: s.now(),
		Config: engine.ImageConfig{
			Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd, Env: config.Config.Env,
			WorkingDir: config.Config.WorkingDir, User: config.Config.User,
		},
	}
	data, err := json.Marshal(image)
	if err != nil {
		return storedImage{}, err
	}
	if err := os.WriteFile(filepath.Join(work, "image.json"), data, 0o600); err != nil {
		return storedImage{}, err
	}
	return image, nil
}

// publish makes a finished image visible. Another process may have been faster
// with the same one, which is as good.
func (s *imageStore) publish(work string, digest v1.Hash) error {
	if err := syncTree(work); err != nil {
		return fmt.Errorf("write the image to the disk: %w", err)
	}
	err := os.Rename(work, filepath.Join(s.dir, digest.Hex))
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return os.RemoveAll(work)
	}
	if err != nil {
		return err
	}
	return syncDir(s.dir)
}

// unpack downloads layers side by side and lays them over each other in order.
// It returns the size of the files.
func (s *imageStore) unpack(ctx context.Context, work, rootfs string, remote v1.Image, room roomCheck, report func(engine.PullProgress)) (int64, error) {
	layers, err := remote.Layers()
	if err != nil {
		return 0, registryError(err)
	}
	progress := &downloadProgress{report: report}
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return 0, registryError(err)
		}
		progress.total += size
	}
	downloads, ctx := errgroup.WithContext(ctx)
	downloads.SetLimit(parallelDownloads + 1) // and the one that unpacks
	arrived := make([]chan struct{}, len(layers))
	for i := range arrived {
		arrived[i] = make(chan struct{})
	}
	path := func(i int) string { return filepath.Join(work, "layer-"+strconv.Itoa(i)) }
	var total int64
	downloads.Go(func() error {
		for i := range layers {
			select {
			case <-arrived[i]:
			case <-ctx.Done():
				return ctx.Err()
			}
			size, err := applyLayer(ctx, rootfs, path(i), room)
			if err != nil {
				return err
			}
			total += size
		}
		return nil
	})
	for i, layer := range layers {
		downloads.Go(func() error {
			if err := download(ctx, layer, path(i), io.MultiWriter(progress, room)); err != nil {
				return err
			}
			close(arrived[i])
			return nil
		})
	}
	err = downloads.Wait()
	return total, err
}

type downloadProgress struct {
	report   func(engine.PullProgress)
	total    int64
	complete atomic.Int64
}

func (p *downloadProgress) Write(data []byte) (int, error) {
	complete := p.complete.Add(int64(len(data)))
	p.report(engine.PullProgress{CompleteBytes: complete, TotalBytes: p.total})
	return len(data), nil
}

// download keeps a layer as it came; its digest is checked on the way.
func download(ctx context.Context, layer v1.Layer, path string, watch io.Writer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	content, err := layer.Compressed()
	if err != nil {
		return registryError(err)
	}
	defer content.Close()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := &readErrors{reader: content}
	if _, err := io.Copy(io.MultiWriter(file, watch), reader); err != nil {
		if reader.err != nil {
			return fmt.Errorf("download a layer: %w", registryError(reader.err))
		}
		return fmt.Errorf("store a layer: %w", err)
	}
	return file.Close()
}

// readErrors remembers that it was reading that failed.
type readErrors struct {
	reader io.Reader
	err    error
}

func (r *readErrors) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// applyLayer lays one layer over those below. The library keeps every path
// within rootfs, whatever names and links the layer has.
func applyLayer(ctx context.Context, rootfs, path string, room roomCheck) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	content, err := compression.DecompressStream(file)
	if err != nil {
		return 0, fmt.Errorf("%w: decompress a layer: %w", engine.ErrImageInvalid, err)
	}
	defer content.Close()
	size, err := archive.UnpackLayer(rootfs, io.TeeReader(content, room), &archive.TarOptions{})
	switch {
	case err == nil:
		return size, os.Remove(path)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, engine.ErrNoSpace):
		return 0, fmt.Errorf("unpack a layer: %w", err)
	default:
		return 0, fmt.Errorf("%w: unpack a layer: %w", engine.ErrImageInvalid, err)
	}
}
