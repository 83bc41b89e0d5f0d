package oci

import (
	"context"
	"errors"
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
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

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
		return nil, fmt.Errorf("%w: reference %q: %w", engine.ErrImageInvalid, reference, err)
	}
	if !c.mayUsePlainHTTP(parsed.Context().RegistryStr()) {
		return parsed, nil
	}
	parsed, err = name.ParseReference(reference, name.Insecure)
	if err != nil {
		return nil, fmt.Errorf("%w: reference %q: %w", engine.ErrImageInvalid, reference, err)
	}
	return parsed, nil
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

// resolve asks the mirrors and then the registry. Its image reads layers only
// when they are asked for.
func (c *registryClient) resolve(ctx context.Context, reference name.Reference, request engine.PullRequest) (v1.Image, error) {
	sources, err := c.config.sources(ctx, reference, request)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, from := range sources {
		image, err := c.fetch(ctx, from)
		if err == nil {
			return image, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		failures = append(failures, fmt.Errorf("%s: %w", from.reference.Context().RegistryStr(), err))
	}
	return nil, mostTelling(failures)
}

// mostTelling makes one error of those of several sources. The registry's own
// answer counts most, unless it gave none and a mirror did.
func mostTelling(failures []error) error {
	last := failures[len(failures)-1]
	if errors.Is(last, engine.ErrRegistryUnavailable) {
		for _, failure := range failures {
			if errors.Is(failure, engine.ErrImageNotFound) {
				return fmt.Errorf("%w (and the registry itself does not answer: %v)", failure, last) //nolint:errorlint // One kind of error, for errors.Is.
			}
		}
	}
	return last
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
	return nil, platformError(strings.Join(offered, ", "))
}

func (c *registryClient) checkPlatform(image v1.Image) error {
	config, err := image.ConfigFile()
	if err != nil {
		return registryError(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		return platformError(config.OS + "/" + config.Architecture)
	}
	return nil
}

func platformError(offered string) error {
	return fmt.Errorf("%w: it is for %s, this machine is linux/%s", engine.ErrImageInvalid, offered, runtime.GOARCH)
}

// registryError says which of the engine's errors a registry's answer is.
func registryError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch {
		case answer.StatusCode == http.StatusNotFound:
			return fmt.Errorf("%w: %w", engine.ErrImageNotFound, err)
		case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
			return fmt.Errorf("%w: %w", engine.ErrImageUnauthorized, err)
		case answer.StatusCode == http.StatusTooManyRequests, answer.StatusCode >= http.StatusInternalServerError:
			return fmt.Errorf("%w: %w", engine.ErrRegistryUnavailable, err)
		}
		return fmt.Errorf("%w: %w", engine.ErrImageInvalid, err)
	}
	var network net.Error
	var request *url.Error
	if errors.As(err, &network) || errors.As(err, &request) {
		return fmt.Errorf("%w: %w", engine.ErrRegistryUnavailable, err)
	}
	return fmt.Errorf("%w: %w", engine.ErrImageInvalid, err)
}
