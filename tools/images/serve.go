package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
)

// serve runs a registry with the built images until ctx ends. It prints
// `ready` when the images can be pulled.
func serve(ctx context.Context, directory, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: 10 * time.Second,
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		defer server.Close()
		for _, r := range recipes {
			if err := push(ctx, r.layoutPath(directory), fmt.Sprintf("%s/%s:%s", listener.Addr(), r.repository, r.tag)); err != nil {
				return fmt.Errorf("image %s:%s (build it first): %w", r.repository, r.tag, err)
			}
		}
		fmt.Println("ready", listener.Addr())
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}

// push copies the one image of an OCI layout to a reference.
func push(ctx context.Context, path, reference string) error {
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%s holds %d images, want 1", path, len(manifest.Manifests))
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	target, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(target, image, remote.WithContext(ctx))
}
