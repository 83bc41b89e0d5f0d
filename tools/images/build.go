package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// epoch is the time of every entry, so that the same packages give the same
// digest.
var epoch = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// skipped are parts of packages that a sandbox has no use for.
var skipped = []string{"usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/"}

func build(ctx context.Context, directory string) error {
	for _, r := range recipes {
		image, err := r.build(ctx)
		if err != nil {
			return fmt.Errorf("image %s:%s: %w", r.repository, r.tag, err)
		}
		target := r.layoutPath(directory)
		if err := os.RemoveAll(target); err != nil {
			return err
		}
		path, err := layout.Write(target, empty.Index)
		if err != nil {
			return err
		}
		if err := path.AppendImage(image); err != nil {
			return err
		}
		size, err := image.Size()
		if err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		layers, err := image.Layers()
		if err != nil {
			return err
		}
		for _, l := range layers {
			n, err := l.Size()
			if err != nil {
				return err
			}
			size += n
		}
		fmt.Printf("%s:%s %s %.1f MB\n", r.repository, r.tag, digest, float64(size)/1e6)
	}
	return nil
}

// layoutPath is where the image's OCI layout lies below directory.
func (r recipe) layoutPath(directory string) string {
	return filepath.Join(directory, strings.ReplaceAll(r.repository, "/", "_")+"_"+r.tag)
}

func (r recipe) build(ctx context.Context) (v1.Image, error) {
	content, err := r.layer(ctx)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture = runtime.GOARCH
	config.OS = "linux"
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{Cmd: r.cmd, Env: []string{searchPath}}
	return mutate.ConfigFile(image, config)
}

// layer puts the packages and files into one tar.
func (r recipe) layer(ctx context.Context) ([]byte, error) {
	packages, err := fetch(ctx, r.packages)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := &layerWriter{tar: tar.NewWriter(&out), seen: map[string]bool{}}
	for _, directory := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := w.add(&tar.Header{Typeflag: tar.TypeDir, Name: "usr/" + directory, Mode: 0o755}, nil); err != nil {
			return nil, err
		}
		if err := w.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: directory, Linkname: "usr/" + directory, Mode: 0o777}, nil); err != nil {
			return nil, err
		}
	}
	for _, path := range packages {
		if err := walkPackage(ctx, path, w.add); err != nil {
			return nil, err
		}
	}
	files, err := r.files(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := w.add(f.header(), bytes.NewReader(f.content)); err != nil {
			return nil, err
		}
	}
	if err := w.tar.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// layerWriter writes entries once each; the first of a name wins.
type layerWriter struct {
	tar  *tar.Writer
	seen map[string]bool
}

func (w *layerWriter) add(header *tar.Header, content io.Reader) error {
	if header.Name == "" || w.seen[header.Name] {
		return nil
	}
	for _, prefix := range skipped {
		if strings.HasPrefix(header.Name+"/", prefix) {
			return nil
		}
	}
	if parent := filepath.Dir(header.Name); parent != "." && !w.seen[parent] {
		if err := w.add(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o755}, nil); err != nil {
			return err
		}
	}
	w.seen[header.Name] = true
	entry := &tar.Header{
		Typeflag: header.Typeflag, Name: header.Name, Linkname: header.Linkname, Mode: header.Mode,
		Uid: header.Uid, Gid: header.Gid, ModTime: epoch, Format: tar.FormatPAX,
	}
	if header.Typeflag == tar.TypeDir {
		entry.Name += "/"
	}
	if header.Typeflag == tar.TypeReg {
		entry.Size = header.Size
	}
	if err := w.tar.WriteHeader(entry); err != nil {
		return fmt.Errorf("add %s: %w", header.Name, err)
	}
	if header.Typeflag == tar.TypeReg && header.Size > 0 {
		if _, err := io.Copy(w.tar, content); err != nil {
			return fmt.Errorf("add %s: %w", header.Name, err)
		}
	}
	return nil
}
