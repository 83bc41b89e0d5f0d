package oci

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Config says how an engine works. Zero fields take the documented defaults.
type Config struct {
	// DataDir holds images and sandboxes; it is made when absent. It must be on
	// a file system that can be the upper layer of an overlay. Required.
	DataDir string
	// Name sets this engine's tables, cgroups and interfaces apart from those
	// of other engines on the host: 1 to 40 characters of [a-z0-9-]. Required.
	Name string
	// GuestPath is the static guest binary, on the host. It must not be changed
	// in place while sandboxes run; replace it by renaming. Required.
	GuestPath string

	// Runtime is "runsc", "crun" or "runc", or empty for the first of these
	// that works here.
	Runtime string
	// RuntimePath is the runtime's binary; empty: looked up in PATH and the
	// usual system directories.
	RuntimePath string

	// SandboxSubnet is where sandboxes get their addresses from, IPv4, /8 to
	// /30. Engines on one host may share it. Default 10.231.0.0/16.
	SandboxSubnet netip.Prefix
	// InternalPrefixes are carved out of every EgressRule with Any. Default
	// DefaultInternalPrefixes. The sandbox subnet and the host's own addresses
	// are never reachable, whatever this says.
	InternalPrefixes []netip.Prefix
	// Resolvers answer DNS for sandboxes; default: the host's own.
	Resolvers []netip.Addr
	// HostStateDir is shared by all engines of a host and holds what must be
	// undone once the last of them has gone, so engines of one host must not
	// differ in it. Default /run/sandbar.
	HostStateDir string

	// Mirrors are asked before the registry itself, in order; keyed by registry
	// ("docker.io"), values are base URLs ("http://127.0.0.1:5000").
	Mirrors map[string][]string
	// InsecureRegistries may be spoken to without TLS ("host" or "host:port").
	// Registries on loopback always may.
	InsecureRegistries []string
	// Keychain finds credentials for registries; default: Docker's
	// configuration file.
	Keychain authn.Keychain

	// StartTimeout bounds the time from the runtime's start to the guest's
	// first answer. Default 30 s.
	StartTimeout time.Duration

	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time

	// systemDirectories are where a runtime is looked up beside PATH; default
	// systemPath.
	systemDirectories string
}

// defaultHostStateDir goes with the settings it is about: at the next boot.
const defaultHostStateDir = "/run/sandbar"

// DefaultInternalPrefixes are the ranges that are not the internet: loopback,
// private and shared address space, link-local (with the clouds' metadata
// services), benchmarking, multicast and reserved ranges (RFC 6890).
func DefaultInternalPrefixes() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("198.18.0.0/15"),
		netip.MustParsePrefix("224.0.0.0/3"),
	}
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// complete checks the configuration and fills in defaults.
func (c Config) complete() (Config, error) {
	var errs []error
	if c.DataDir == "" {
		errs = append(errs, errors.New("data directory: required"))
	} else if abs, err := filepath.Abs(c.DataDir); err != nil {
		errs = append(errs, fmt.Errorf("data directory: %w", err))
	} else {
		c.DataDir = abs
		if strings.ContainsAny(abs, `:,\`) {
			errs = append(errs, fmt.Errorf("data directory %q: must not contain a colon, a comma or a backslash, which overlay mounts cannot express", abs))
		}
	}
	if !namePattern.MatchString(c.Name) {
		errs = append(errs, fmt.Errorf("name %q: expected 1 to 40 characters of [a-z0-9-], not starting or ending with a hyphen", c.Name))
	}
	if !filepath.IsAbs(c.GuestPath) {
		errs = append(errs, fmt.Errorf("guest binary %q: expected an absolute path", c.GuestPath))
	}
	if c.Runtime != "" && findRuntimeKind(c.Runtime) == nil {
		errs = append(errs, fmt.Errorf("runtime %q: expected runsc, crun or runc", c.Runtime))
	}
	if c.Runtime == "" && c.RuntimePath != "" {
		errs = append(errs, errors.New("runtime path is set: say with runtime whether it is runsc, crun or runc"))
	}
	if !c.SandboxSubnet.IsValid() {
		c.SandboxSubnet = netip.MustParsePrefix("10.231.0.0/16")
	}
	c.SandboxSubnet = c.SandboxSubnet.Masked()
	if !c.SandboxSubnet.Addr().Is4() || c.SandboxSubnet.Bits() < 8 || c.SandboxSubnet.Bits() > 30 {
		errs = append(errs, fmt.Errorf("sandbox subnet %s: expected an IPv4 prefix from /8 to /30", c.SandboxSubnet))
	}
	if c.InternalPrefixes == nil {
		c.InternalPrefixes = DefaultInternalPrefixes()
	}
	for registry, mirrors := range c.Mirrors {
		for _, mirror := range mirrors {
			u, err := url.Parse(mirror)
			switch {
			case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
				errs = append(errs, fmt.Errorf("mirror %q of %s: expected an http or https URL", mirror, registry))
			case u.Scheme == "http" && !c.mayUsePlainHTTP(u.Host):
				errs = append(errs, fmt.Errorf("mirror %q of %s: plain HTTP is for loopback only; use https, or list %q as an insecure registry", mirror, registry, u.Host))
			}
		}
	}
	if len(errs) > 0 {
		return c, fmt.Errorf("engine configuration: %w", errors.Join(errs...))
	}

	if c.HostStateDir == "" {
		c.HostStateDir = defaultHostStateDir
	}
	if c.Keychain == nil {
		c.Keychain = authn.DefaultKeychain
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.systemDirectories == "" {
		c.systemDirectories = systemPath
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// shortID derives n characters of [a-z2-7] from s: enough to tell names apart
// where the kernel allows only a few characters.
func shortID(s string, n int) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:n]
}

func (c Config) cgroupParent() string { return "sandbar-" + c.Name }

func (c Config) tableName() string { return "sandbar_" + strings.ReplaceAll(c.Name, "-", "_") }

// linkPrefix begins the name of every interface of this engine: 7 of the 15
// characters that a name may have.
func (c Config) linkPrefix() string { return "sb" + shortID(c.Name, 5) }

func (c Config) linkName(sandboxID string) string { return c.linkPrefix() + shortID(sandboxID, 8) }
