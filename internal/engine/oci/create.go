package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// cleanupTimeout bounds the removal of what a failed Create has made.
const cleanupTimeout = 30 * time.Second

var (
	idPattern       = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,62}[a-zA-Z0-9])?$`)
)

// Create makes a sandbox whose guest answers Dial.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) error {
	if spec.Hostname == "" {
		spec.Hostname = spec.ID
	}
	if err := checkSpec(spec); err != nil {
		return fmt.Errorf("create sandbox: %w", err)
	}
	dir := e.directory(spec.ID)
	if err := os.Mkdir(string(dir), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create sandbox %s: %w", spec.ID, engine.ErrExists)
		}
		return fmt.Errorf("create sandbox %s: %w", spec.ID, noSpace(err))
	}
	lock, err := tryLockDir(string(dir))
	if err != nil {
		// Between the two calls another took it for a half-made sandbox: it
		// removes what there is.
		return fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	defer lock.Close()
	if err := e.create(ctx, dir, spec); err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return fmt.Errorf("create sandbox %s: %w", spec.ID, errors.Join(noSpace(err), e.takeAway(cleanup, spec.ID)))
	}
	return nil
}

func (e *Engine) create(ctx context.Context, dir directory, spec engine.Spec) error {
	r := record{Spec: spec, CreateTime: e.config.Now()}
	if err := dir.writeRecord(r); err != nil {
		return err
	}
	e.step("record")
	// In this order: the record tells a prune that the image is in use.
	rootfs, err := e.images.rootfs(spec.ImageDigest)
	if err != nil {
		return err
	}
	// A sandbox that may talk to nothing needs no network, and starts sooner.
	connected := spec.Network.DNS || len(spec.Network.Egress) > 0

	group, groupCtx := errgroup.WithContext(ctx)
	addressed := make(chan struct{})
	group.Go(func() error {
		defer close(addressed)
		if !connected {
			return nil
		}
		address, err := e.connect(groupCtx, dir, r)
		r.Address = address
		return err
	})
	group.Go(func() error {
		if err := mountRootfs(dir, rootfs); err != nil {
			return err
		}
		e.step("rootfs")
		if err := mountControl(dir); err != nil {
			return err
		}
		e.step("control")
		if err := e.specs.write(dir, spec, connected); err != nil {
			return err
		}
		e.step("bundle")
		<-addressed
		return writeHostFiles(dir, spec, r.Address, e.resolvers)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	process, err := e.start(ctx, dir, spec.ID, connected)
	if err != nil {
		return err
	}
	if err := e.cgroups.capCPU(e.cgroup(spec.ID), spec.Resources.CPULimitMillis); err != nil {
		return err
	}
	r.Process = &process
	if err := dir.writeRecord(r); err != nil {
		return err
	}
	e.step("started")
	return nil
}

// connect gives a sandbox a network and lets it use it.
func (e *Engine) connect(ctx context.Context, dir directory, r record) (netip.Addr, error) {
	if err := e.forwarding.enable(ctx); err != nil {
		return netip.Addr{}, err
	}
	if err := e.firewall.ensure(); err != nil {
		return netip.Addr{}, err
	}
	address, err := e.network.attach(ctx, r.Spec.ID, dir.netns(), e.step)
	if err != nil {
		return netip.Addr{}, err
	}
	r.Address = address
	if err := dir.writeRecord(r); err != nil {
		return netip.Addr{}, err
	}
	if err := e.firewall.admit(r.Spec.ID, address, r.Spec.Network); err != nil {
		return netip.Addr{}, err
	}
	e.step("firewall")
	return address, nil
}

// start runs the sandbox and waits until its guest answers on the sealed
// channel.
func (e *Engine) start(ctx context.Context, dir directory, id string, connected bool) (process, error) {
	watch, err := watchSocket(dir)
	if err != nil {
		return process{}, err
	}
	defer watch.close()
	pid, err := e.runtime.run(ctx, dir, id, !connected)
	if err != nil {
		return process{}, err
	}
	e.step("run")
	started, err := identify(pid)
	if errors.Is(err, errProcessGone) {
		return process{}, errGuestEnded
	}
	if err != nil {
		return process{}, err
	}
	if err := e.awaitGuest(ctx, dir, started, watch); err != nil {
		return process{}, err
	}
	return started, nil
}

var (
	errGuestEnded = errors.New("the guest ended before it listened")
	errGuestSlow  = errors.New("the guest does not listen")
)

func (e *Engine) awaitGuest(ctx context.Context, dir directory, guest process, watch *socketWatch) error {
	handle, err := guest.open()
	if errors.Is(err, errProcessGone) {
		return errGuestEnded
	}
	if err != nil {
		return err
	}
	defer handle.Close()
	ctx, stopTimer := context.WithTimeoutCause(ctx, e.config.StartTimeout, fmt.Errorf("%w after %s", errGuestSlow, e.config.StartTimeout))
	defer stopTimer()
	ctx, cancel := context.WithCancelCause(ctx)
	var ends errgroup.Group
	ends.Go(func() error {
		err := waitEnd(ctx, handle)
		if err == nil {
			cancel(errGuestEnded)
		}
		return nil
	})
	defer func() {
		cancel(nil)
		_ = ends.Wait()
	}()
	if err := watch.wait(ctx); err != nil {
		return err
	}
	// gVisor is not done with the socket's path before it listens.
	if err := awaitListener(ctx, dir.export()); err != nil {
		return err
	}
	e.step("socket")
	if err := sealControl(dir); err != nil {
		return err
	}
	e.step("sealed")
	return nil
}

func checkSpec(spec engine.Spec) error {
	var errs []error
	if !idPattern.MatchString(spec.ID) {
		errs = append(errs, fmt.Errorf("id %q: expected 1 to 63 characters of [a-z0-9-]", spec.ID))
	}
	if !hostnamePattern.MatchString(spec.Hostname) {
		errs = append(errs, fmt.Errorf("hostname %q: expected 1 to 64 letters, digits, dots and hyphens", spec.Hostname))
	}
	r := spec.Resources
	if r.CPURequestMillis < 0 || r.CPULimitMillis < 0 || r.MemoryLimitBytes < 0 || r.PidsLimit < 0 {
		errs = append(errs, errors.New("resources: must not be negative"))
	}
	if _, _, err := capabilityNames(append(spec.Security.CapabilitiesAdd, spec.Security.CapabilitiesDrop...)); err != nil {
		errs = append(errs, fmt.Errorf("capabilities: %w", err))
	}
	for i, rule := range spec.Network.Egress {
		if !rule.Any && !rule.Prefix.IsValid() {
			errs = append(errs, fmt.Errorf("egress rule %d: names no destination", i))
		}
		if rule.Prefix.IsValid() && !rule.Prefix.Addr().Is4() {
			errs = append(errs, fmt.Errorf("egress rule %d: %s: sandboxes have no IPv6; expected an IPv4 prefix", i, rule.Prefix))
		}
		for _, ports := range rule.Ports {
			if protocols[ports.Protocol] == 0 || ports.First == 0 || ports.Last < ports.First {
				errs = append(errs, fmt.Errorf("egress rule %d: %s ports %d to %d: expected TCP, UDP or SCTP and a range within 1 to 65535", i, ports.Protocol, ports.First, ports.Last))
			}
		}
	}
	return errors.Join(errs...)
}
