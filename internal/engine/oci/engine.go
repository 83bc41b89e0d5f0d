package oci

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Engine runs sandboxes on this machine.
type Engine struct {
	config     Config
	cgroups    cgroups
	runtime    *ociRuntime
	specs      *specBuilder
	network    *network
	firewall   *firewall
	forwarding *forwarding
	images     *imageStore
	resolvers  []netip.Addr
	// step is told how far the making of a sandbox has come; tests end the
	// process there.
	step func(string)
}

var _ engine.Engine = (*Engine)(nil)

// New makes an engine, chooses a runtime and tries it. It must run as root. It
// answers engine.ErrRuntimeUnavailable when no runtime works here.
func New(ctx context.Context, config Config) (*Engine, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the local engine makes namespaces, mounts and firewall rules: run it as root")
	}
	if info, err := os.Stat(config.GuestPath); err != nil {
		return nil, fmt.Errorf("guest binary: %w", err)
	} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("guest binary %s: expected an executable file", config.GuestPath)
	}
	e := &Engine{config: config, resolvers: config.Resolvers, step: func(string) {}}
	for _, dir := range []string{e.sandboxesDir(), e.imagesDir(), e.referencesDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the data directory: %w", noSpace(err))
		}
	}
	if e.cgroups, err = discoverCgroups(); err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrRuntimeUnavailable, err)
	}
	if e.resolvers == nil {
		if e.resolvers, err = hostResolvers(); err != nil {
			return nil, err
		}
		if len(e.resolvers) == 0 {
			config.Logger.Warn("the host names no resolver that sandboxes could reach; they will have no DNS")
		}
	}
	bounding, err := boundingCapabilities()
	if err != nil {
		return nil, err
	}
	e.network = &network{addresses: newAddresses(config.SandboxSubnet, config.Name), linkName: config.linkName}
	e.firewall = config.firewall(e.resolvers)
	e.forwarding = config.forwarding()
	e.specs = &specBuilder{
		guestPath: config.GuestPath, cgroupParent: config.cgroupParent(), cgroups: e.cgroups, bounding: bounding,
	}
	e.images = newImageStore(config, e.imagesDir(), e.referencesDir())
	if err := e.images.removeLeftovers(); err != nil {
		return nil, err
	}
	if err := e.chooseRuntime(ctx); err != nil {
		return nil, err
	}
	if err := e.restoreFirewall(); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Engine) sandboxesDir() string  { return filepath.Join(e.config.DataDir, "sandboxes") }
func (e *Engine) imagesDir() string     { return filepath.Join(e.config.DataDir, "images") }
func (e *Engine) referencesDir() string { return filepath.Join(e.config.DataDir, "references") }

func (e *Engine) directory(id string) directory {
	return directory(filepath.Join(e.sandboxesDir(), id))
}

func (e *Engine) cgroup(id string) string { return filepath.Join(e.config.cgroupParent(), id) }

// chooseRuntime takes the first runtime that really starts something.
func (e *Engine) chooseRuntime(ctx context.Context) error {
	kinds := runtimeKinds()
	if e.config.Runtime != "" {
		kinds = []runtimeKind{*findRuntimeKind(e.config.Runtime)}
	}
	var failures []error
	var install []string
	for _, kind := range kinds {
		install = append(install, kind.install)
		candidate, err := openRuntime(ctx, kind, e.config, e.cgroups)
		if err == nil {
			err = noSpace(e.probe(ctx, candidate))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if candidate != nil && errors.Is(err, engine.ErrNoSpace) {
			// Sandboxes have to be looked after, and some to be removed, all the more.
			e.config.Logger.Warn("the disk is full: the runtime is used without a trial", "runtime", kind.name, "error", err)
			err = nil
		}
		if err == nil {
			e.runtime = candidate
			e.specs.runtime = candidate.runtimeKind
			e.config.Logger.Info("runtime chosen", "runtime", candidate.name, "path", candidate.path, "version", candidate.version)
			return nil
		}
		e.config.Logger.Debug("runtime does not work here", "runtime", kind.name, "error", err)
		failures = append(failures, err)
	}
	return fmt.Errorf("%w: %w; install %s", engine.ErrRuntimeUnavailable, errors.Join(failures...), strings.Join(install, ", or "))
}

// Info describes the engine and the machine.
func (e *Engine) Info(context.Context) (engine.Info, error) {
	var system unix.Sysinfo_t
	if err := unix.Sysinfo(&system); err != nil {
		return engine.Info{}, fmt.Errorf("measure the machine: %w", err)
	}
	return engine.Info{
		Runtime:        e.runtime.name,
		RuntimeVersion: e.runtime.version,
		Architecture:   runtime.GOARCH,
		CPUMillis:      int64(runtime.NumCPU()) * 1000,
		MemoryBytes:    int64(system.Totalram) * int64(system.Unit),
	}, nil
}

// Close waits for pulls that are under way to end. Sandboxes go on.
func (e *Engine) Close() error {
	e.images.close()
	return nil
}

// Uninstall takes away the engine's firewall table and cgroups, and sets IP
// forwarding back unless another engine of the host needs it.
func (e *Engine) Uninstall(ctx context.Context) error {
	ids, err := e.sandboxIDs()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fmt.Errorf("uninstall the engine: %d sandboxes are left (first %s); remove them before", len(ids), ids[0])
	}
	return errors.Join(
		e.firewall.uninstall(),
		e.cgroups.remove(ctx, e.config.cgroupParent()),
		e.forwarding.restore(ctx),
	)
}

// Uninstall is Engine.Uninstall for an engine that need not work any more: the
// runtime and the guest may have gone from the machine before.
func Uninstall(ctx context.Context, config Config) error {
	config, err := config.complete()
	if err != nil {
		return err
	}
	e := &Engine{config: config, firewall: config.firewall(nil), forwarding: config.forwarding()}
	if e.cgroups, err = discoverCgroups(); err != nil {
		return fmt.Errorf("uninstall the engine: %w", err)
	}
	return e.Uninstall(ctx)
}

func (c Config) firewall(resolvers []netip.Addr) *firewall {
	return &firewall{
		table: c.tableName(), linkPrefix: c.linkPrefix(), linkName: c.linkName,
		subnet: c.SandboxSubnet, internal: c.InternalPrefixes, resolvers: resolvers,
	}
}

func (c Config) forwarding() *forwarding {
	return &forwarding{stateDir: c.HostStateDir, name: c.Name, dataDir: c.DataDir}
}

// noSpace marks errors that a full disk or quota caused.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}
