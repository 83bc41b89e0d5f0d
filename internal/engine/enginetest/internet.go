package enginetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// internet is a network namespace that stands for the world outside: a few
// addresses of TEST-NET-2 (RFC 5737) behind one interface of the host. Each of
// them answers on TCP and UDP ports 53, 80 and 81.
type internet struct {
	// host is the machine's own address on that network.
	host                  netip.Addr
	site, other, resolver netip.Addr
	// neighbour is a link-local address, like that of a metadata service.
	neighbour netip.Addr

	mu       sync.Mutex
	received []string
}

// sitePorts are where every address answers.
var sitePorts = []uint16{53, 80, 81}

func newInternet(t *testing.T) *internet {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: engines make namespaces, mounts and firewall rules")
	}
	world := &internet{}
	namespace, link := world.build(t)
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Errorf("remove the internet: %v", err)
		}
		namespace.Close()
	})
	var servers sync.WaitGroup
	var open []io.Closer
	t.Cleanup(func() {
		for _, closer := range open {
			closer.Close()
		}
		servers.Wait()
	})
	err := inNamespace(namespace, func() error {
		for _, address := range []netip.Addr{world.site, world.other, world.resolver, world.neighbour} {
			for _, port := range sitePorts {
				listener, err := net.Listen("tcp4", at(address, port))
				if err != nil {
					return err
				}
				open = append(open, listener)
				packets, err := net.ListenPacket("udp4", at(address, port))
				if err != nil {
					return err
				}
				open = append(open, packets)
				servers.Go(func() { world.serveStreams(listener) })
				servers.Go(func() { world.servePackets(packets) })
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("serve the internet: %v", err)
	}
	return world
}

// build takes the first free sixteen addresses of 198.51.100.0/24: other tests
// may have an internet of their own.
func (w *internet) build(t *testing.T) (netns.NsHandle, netlink.Link) {
	t.Helper()
	namespace, err := newNamespace()
	if err != nil {
		t.Fatalf("make the internet: %v", err)
	}
	name := fmt.Sprintf("inet%d", os.Getpid())
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(namespace)}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("make the internet: %v", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("make the internet: %v", err)
	}
	for block := range byte(16) {
		network := &net.IPNet{IP: net.IPv4(198, 51, 100, block*16).To4(), Mask: net.CIDRMask(28, 32)}
		err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Scope: netlink.SCOPE_LINK, Dst: network})
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			t.Fatalf("make the internet: %v", err)
		}
		at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, block*16 + n}) }
		w.host, w.site, w.other, w.resolver = at(1), at(2), at(3), at(4)
		w.neighbour = netip.AddrFrom4([4]byte{169, 254, 213, block*16 + 2})
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Scope: netlink.SCOPE_LINK, Dst: hostNetwork(w.neighbour)}); err != nil {
			t.Fatalf("make the internet: %v", err)
		}
		if err := w.configure(namespace, link); err != nil {
			t.Fatalf("make the internet: %v", err)
		}
		return namespace, link
	}
	t.Fatal("make the internet: 198.51.100.0/24 is in use")
	return 0, nil
}

func (w *internet) configure(namespace netns.NsHandle, link netlink.Link) error {
	address := func(a netip.Addr) *netlink.Addr { return &netlink.Addr{IPNet: hostNetwork(a)} }
	if err := netlink.AddrAdd(link, address(w.host)); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	peer, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, a := range []netip.Addr{w.site, w.other, w.resolver, w.neighbour} {
		if err := inside.AddrAdd(peer, address(a)); err != nil {
			return err
		}
	}
	if err := inside.LinkSetUp(peer); err != nil {
		return err
	}
	// It can answer whatever reaches it, also from an address made up.
	return inside.RouteAdd(&netlink.Route{LinkIndex: peer.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}})
}

func hostNetwork(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func (w *internet) serveStreams(listener net.Listener) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		calls.Go(func() {
			defer conn.Close()
			if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
				_, _ = io.WriteString(conn, answerTo(conn.RemoteAddr()))
			}
		})
	}
}

func (w *internet) servePackets(packets net.PacketConn) {
	buffer := make([]byte, 512)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.received = append(w.received, string(buffer[:n]))
		w.mu.Unlock()
		_, _ = packets.WriteTo([]byte(answerTo(from)), from)
	}
}

// answerTo tells a client what address it was seen from.
func answerTo(client net.Addr) string {
	host, _, err := net.SplitHostPort(client.String())
	if err != nil {
		return err.Error()
	}
	return "seen from " + host
}

// datagrams are those received so far, in order.
func (w *internet) datagrams() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.received...)
}

// newNamespace makes a namespace that lives as long as its handle.
func newNamespace() (netns.NsHandle, error) {
	type made struct {
		namespace netns.NsHandle
		err       error
	}
	done := make(chan made, 1)
	go func() {
		// The thread ends with the goroutine, as it is never unlocked.
		runtime.LockOSThread()
		namespace, err := netns.New()
		done <- made{namespace, err}
	}()
	m := <-done
	return m.namespace, m.err
}

// inNamespace runs f on a thread in the namespace; sockets that f makes stay
// there.
func inNamespace(namespace netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(namespace); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
