package oci

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// dockerHub is what users write for the registry that go-containerregistry
// calls by another name.
const dockerHub = "docker.io"

// mayUsePlainHTTP says whether a registry may be spoken to without TLS.
func (c Config) mayUsePlainHTTP(host string) bool {
	bare, _, err := net.SplitHostPort(host)
	if err != nil {
		bare = host
	}
	if slices.Contains(c.InsecureRegistries, host) || slices.Contains(c.InsecureRegistries, bare) || bare == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(bare, "[]"))
	return err == nil && address.IsLoopback()
}

// parseReference reads a reference as users write it.
func (c Config) parseReference(reference string) (name.Reference, error) {
	parsed, err := name.ParseReference(reference)
	if err != nil {
		return nil, notAReference(reference, err)
	}
	if !c.mayUsePlainHTTP(parsed.Context().RegistryStr()) {
		return parsed, nil
	}
	parsed, err = name.ParseReference(reference, name.Insecure)
	if err != nil {
		return nil, notAReference(reference, err)
	}
	return parsed, nil
}

func notAReference(reference string, err error) error {
	return &engine.PullError{Reference: reference, Attempts: []engine.PullAttempt{{
		Cause: oneLine(err.Error()),
		Hint:  "write the reference like python:3.11 or registry.example/team/image:tag",
		Err:   fmt.Errorf("%w: %w", engine.ErrImageInvalid, err),
	}}}
}

// canonicalReference is the one spelling of a reference: registry, repository,
// tag or digest, all written out.
func canonicalReference(reference name.Reference) string {
	if rest, ok := strings.CutPrefix(reference.Name(), name.DefaultRegistry); ok {
		return dockerHub + rest
	}
	return reference.Name()
}

// source is one place an image can come from.
type source struct {
	reference name.Reference
	auth      authn.Authenticator
	mirror    bool
}

// sources are the mirrors of the reference's registry, then the registry.
// Credentials of a pull are for the registry alone.
func (c Config) sources(ctx context.Context, reference name.Reference, request engine.PullRequest) ([]source, error) {
	registry := reference.Context().RegistryStr()
	if registry == name.DefaultRegistry {
		registry = dockerHub
	}
	var sources []source
	for _, mirror := range c.Mirrors[registry] {
		u, err := url.Parse(mirror)
		if err != nil {
			return nil, fmt.Errorf("mirror %q: %w", mirror, err)
		}
		var options []name.Option
		if u.Scheme == "http" {
			options = append(options, name.Insecure)
		}
		path := strings.Trim(strings.TrimSuffix(u.Path, "/v2"), "/")
		if path != "" {
			path += "/"
		}
		separator := ":"
		if _, ok := reference.(name.Digest); ok {
			separator = "@"
		}
		mirrored, err := name.ParseReference(u.Host+"/"+path+reference.Context().RepositoryStr()+separator+reference.Identifier(), options...)
		if err != nil {
			return nil, fmt.Errorf("mirror %q: %w", mirror, err)
		}
		auth, err := authn.Resolve(ctx, c.Keychain, mirrored.Context())
		if err != nil {
			return nil, fmt.Errorf("find credentials for %s: %w", u.Host, err)
		}
		sources = append(sources, source{reference: mirrored, auth: auth, mirror: true})
	}
	own := source{reference: reference}
	if request.Username != "" || request.Password != "" {
		own.auth = authn.FromConfig(authn.AuthConfig{Username: request.Username, Password: request.Password})
	} else {
		auth, err := authn.Resolve(ctx, c.Keychain, reference.Context())
		if err != nil {
			return nil, fmt.Errorf("find credentials for %s: %w", registry, err)
		}
		own.auth = auth
	}
	return append(sources, own), nil
}

// registryClient resolves references to images of this machine's platform.
type registryClient struct {
	config    Config
	transport http.RoundTripper
}

func newRegistryClient(config Config) *registryClient {
	return &registryClient{config: config, transport: remote.DefaultTransport}
}

// resolve asks the mirrors and then the registry, and says which of them has
// answered. Its image reads layers only when they are asked for. It answers
// with an engine.PullError when none has the image.
func (c *registryClient) resolve(ctx context.Context, reference name.Reference, request engine.PullRequest) (v1.Image, source, error) {
	sources, err := c.config.sources(ctx, reference, request)
	if err != nil {
		return nil, source{}, err
	}
	failure := &engine.PullError{Reference: request.Reference}
	for _, from := range sources {
		image, err := c.fetch(ctx, from)
		if err == nil {
			return image, from, nil
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		failure.Attempts = append(failure.Attempts, from.attempt(err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, source{}, failure
}

func (c *registryClient) fetch(ctx context.Context, from source) (v1.Image, error) {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuth(from.auth), remote.WithTransport(c.transport)}
	descriptor, err := remote.Get(from.reference, options...)
	if err != nil {
		return nil, registryError(err)
	}
	if !descriptor.MediaType.IsIndex() {
		image, err := descriptor.Image()
		if err != nil {
			return nil, registryError(err)
		}
		return image, c.checkPlatform(image)
	}
	index, err := descriptor.ImageIndex()
	if err != nil {
		return nil, registryError(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, registryError(err)
	}
	var offered []string
	for _, child := range manifest.Manifests {
		if child.Platform == nil || child.Platform.OS == "unknown" {
			continue
		}
		if child.Platform.OS == "linux" && child.Platform.Architecture == runtime.GOARCH {
			image, err := index.Image(child.Digest)
			if err != nil {
				return nil, registryError(err)
			}
			return image, nil
		}
		offered = append(offered, child.Platform.String())
	}
	return nil, &platformError{offered: strings.Join(offered, ", ")}
}

func (c *registryClient) checkPlatform(image v1.Image) error {
	config, err := image.ConfigFile()
	if err != nil {
		return registryError(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		return &platformError{offered: config.OS + "/" + config.Architecture}
	}
	return nil
}
