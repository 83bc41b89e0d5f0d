package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sandboxLink is the interface's name inside a sandbox.
const sandboxLink = "eth0"

// errNoAddress: every address of the sandbox subnet is taken.
var errNoAddress = errors.New("the sandbox subnet has no free address")

// network gives each sandbox that may talk to anything a network namespace, a
// pair of interfaces and an address. A sandbox that may not has a namespace
// with loopback only, which its runtime makes.
type network struct {
	addresses *addresses
	linkName  func(sandboxID string) string
}

// attach makes a namespace, kept alive by a mount on path, joins it to the host
// and returns the sandbox's address. When it fails, detach clears up.
func (n *network) attach(ctx context.Context, sandboxID, path string, step func(string)) (netip.Addr, error) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return netip.Addr{}, fmt.Errorf("make the network namespace's mount point: %w", err)
	}
	type result struct {
		address netip.Addr
		err     error
	}
	done := make(chan result, 1)
	go func() {
		// The thread is in another namespace from here on. It is never unlocked,
		// so the runtime ends it with this goroutine.
		runtime.LockOSThread()
		address, err := n.attachOnThread(ctx, sandboxID, path, step)
		done <- result{address, err}
	}()
	r := <-done
	return r.address, r.err
}

func (n *network) attachOnThread(ctx context.Context, sandboxID, path string, step func(string)) (netip.Addr, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()
	mtu, err := uplinkMTU(host)
	if err != nil {
		return netip.Addr{}, err
	}

	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return netip.Addr{}, fmt.Errorf("make network namespace: %w", err)
	}
	const own = "/proc/thread-self/ns/net"
	if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
		return netip.Addr{}, fmt.Errorf("keep network namespace: %w", err)
	}
	step("netns")
	// Sandboxes have no IPv6 beyond loopback, which is there already.
	if err := writeExisting("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return netip.Addr{}, fmt.Errorf("turn off IPv6: %w", err)
	}
	namespace, err := os.Open(own)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("open network namespace: %w", err)
	}
	defer namespace.Close()
	sandbox, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("open netlink in the sandbox: %w", err)
	}
	defer sandbox.Close()

	hostAddress := hostPrefix(n.addresses.gateway())
	hostLink := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: n.linkName(sandboxID), MTU: mtu},
		PeerName:      sandboxLink,
		PeerMTU:       uint32(mtu),
		PeerNamespace: netlink.NsFd(namespace.Fd()),
	}
	if err := host.LinkAdd(hostLink); err != nil {
		return netip.Addr{}, fmt.Errorf("make interface %s: %w", hostLink.Name, err)
	}
	step("link")
	if err := host.AddrAdd(hostLink, &netlink.Addr{IPNet: hostAddress}); err != nil {
		return netip.Addr{}, fmt.Errorf("address %s: %w", hostLink.Name, err)
	}
	if err := host.LinkSetUp(hostLink); err != nil {
		return netip.Addr{}, fmt.Errorf("set %s up: %w", hostLink.Name, err)
	}
	address, err := n.claim(ctx, host, hostLink)
	if err != nil {
		return netip.Addr{}, err
	}
	step("address")
	if err := configureSandbox(sandbox, address, n.addresses.gateway()); err != nil {
		return netip.Addr{}, err
	}
	return address, nil
}

// claim finds an address that nobody on this host has a route to.
func (n *network) claim(ctx context.Context, host *netlink.Handle, link netlink.Link) (netip.Addr, error) {
	for range n.addresses.count() {
		if err := ctx.Err(); err != nil {
			return netip.Addr{}, err
		}
		address := n.addresses.candidate()
		err := host.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index,
			Scope:     netlink.SCOPE_LINK,
			Dst:       hostPrefix(address),
		})
		if err == nil {
			return address, nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return netip.Addr{}, fmt.Errorf("claim address %s: %w", address, err)
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: %s", errNoAddress, n.addresses.subnet)
}

func configureSandbox(sandbox *netlink.Handle, address, gateway netip.Addr) error {
	loopback, err := sandbox.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	link, err := sandbox.LinkByName(sandboxLink)
	if err != nil {
		return fmt.Errorf("find %s: %w", sandboxLink, err)
	}
	via := hostPrefix(gateway)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"set loopback up", func() error { return sandbox.LinkSetUp(loopback) }},
		{"address the interface", func() error { return sandbox.AddrAdd(link, &netlink.Addr{IPNet: hostPrefix(address)}) }},
		{"set the interface up", func() error { return sandbox.LinkSetUp(link) }},
		{"route to the gateway", func() error {
			return sandbox.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: via})
		}},
		{"route to everything else", func() error {
			return sandbox.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.IP})
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("configure the sandbox's network: %s: %w", step.name, err)
		}
	}
	return nil
}

// detach takes the host's interface away, and with it the sandbox's, its
// address and its routes.
func (n *network) detach(sandboxID string) error {
	link, err := netlink.LinkByName(n.linkName(sandboxID))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// uplinkMTU is the smallest MTU of the interfaces that default routes leave by.
func uplinkMTU(host *netlink.Handle) (int, error) {
	const ethernet = 1500
	routes, err := host.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil {
		return 0, fmt.Errorf("list default routes: %w", err)
	}
	mtu := ethernet
	for _, route := range routes {
		if route.LinkIndex == 0 {
			continue
		}
		link, err := host.LinkByIndex(route.LinkIndex)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("find the default route's interface: %w", err)
		}
		mtu = min(mtu, link.Attrs().MTU)
	}
	return mtu, nil
}

func hostPrefix(address netip.Addr) *net.IPNet {
	return &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}
}
