package enginetest

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// cut checks that a sandbox does not reach an address. It should be told so at
// once; but a kernel in user space need not pass the answer on to UDP sockets.
func (s *suite) cut(t *testing.T, box *sandbox, protocol, address string) {
	t.Helper()
	reasons := []string{"no route to host", "network is unreachable", "permission denied", "host is unreachable", "operation not permitted"}
	if s.UserspaceKernel && protocol == "udp" {
		reasons = append(reasons, "i/o timeout")
	}
	box.refuse(t, reasons, "connect", protocol, address)
}

func prefix(address netip.Addr) netip.Prefix { return netip.PrefixFrom(address, address.BitLen()) }

func at(address netip.Addr, port uint16) string { return netip.AddrPortFrom(address, port).String() }

func testNetwork(t *testing.T, s *suite) {
	world := s.internet
	connected := func(t *testing.T, network engine.Network) *sandbox {
		t.Helper()
		spec := s.spec()
		spec.Network = network
		return s.create(t, spec)
	}
	allow := func(rules ...engine.EgressRule) engine.Network { return engine.Network{Egress: rules} }

	t.Run("nothing is reached by default", func(t *testing.T) {
		s.leavesNothing(t)
		box := connected(t, engine.Network{})
		for _, address := range []netip.Addr{world.site, world.host, world.resolver} {
			s.cut(t, box, "tcp", at(address, 80))
			s.cut(t, box, "udp", at(address, 53))
		}
	})
	t.Run("an allowed address and no other", func(t *testing.T) {
		s.leavesNothing(t)
		box := connected(t, allow(engine.EgressRule{Prefix: prefix(world.site)}))
		for _, protocol := range []string{"tcp", "udp"} {
			wantEqual(t, protocol, box.want(t, "connect", protocol, at(world.site, 80)), "seen from "+world.host.String())
			s.cut(t, box, protocol, at(world.other, 80))
		}
	})
	t.Run("an allowed port and no other", func(t *testing.T) {
		s.leavesNothing(t)
		box := connected(t, allow(engine.EgressRule{
			Prefix: prefix(world.site),
			Ports:  []engine.PortRange{{Protocol: "TCP", First: 70, Last: 80}},
		}))
		box.want(t, "connect", "tcp", at(world.site, 80))
		s.cut(t, box, "tcp", at(world.site, 81))
		s.cut(t, box, "udp", at(world.site, 80))
	})
	t.Run("rules add up", func(t *testing.T) {
		s.leavesNothing(t)
		box := connected(t, allow(
			engine.EgressRule{Prefix: prefix(world.site), Ports: []engine.PortRange{{Protocol: "UDP", First: 80, Last: 80}}},
			engine.EgressRule{Prefix: prefix(world.other), Ports: []engine.PortRange{{Protocol: "TCP", First: 81, Last: 81}}},
		))
		box.want(t, "connect", "udp", at(world.site, 80))
		box.want(t, "connect", "tcp", at(world.other, 81))
		s.cut(t, box, "tcp", at(world.site, 80))
	})
	t.Run("what a rule excepts", func(t *testing.T) {
		s.leavesNothing(t)
		whole := netip.PrefixFrom(world.site, 28).Masked()
		for name, rule := range map[string]engine.EgressRule{
			"of a prefix": {Prefix: whole, Except: []netip.Prefix{prefix(world.other)}},
			"of any":      {Any: true, Except: []netip.Prefix{prefix(world.other)}},
		} {
			t.Run(name, func(t *testing.T) {
				box := connected(t, allow(rule))
				box.want(t, "connect", "tcp", at(world.site, 80))
				s.cut(t, box, "tcp", at(world.other, 80))
			})
		}
	})
	t.Run("any does not mean the platform", func(t *testing.T) {
		s.leavesNothing(t)
		listener, err := net.Listen("tcp4", at(world.host, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		box := connected(t, engine.Network{DNS: true, Egress: []engine.EgressRule{{Any: true}}})
		box.want(t, "connect", "tcp", at(world.site, 80))
		s.cut(t, box, "tcp", listener.Addr().String())
		for _, internal := range []string{"10.0.0.1:80", "100.64.0.1:80", at(world.neighbour, 80), "172.16.0.1:80", "192.168.0.1:80"} {
			s.cut(t, box, "tcp", internal)
		}
	})
	t.Run("a wide prefix does not mean the machine and its neighbours", func(t *testing.T) {
		s.leavesNothing(t)
		listener, err := net.Listen("tcp4", at(world.host, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		for _, wide := range []string{"0.0.0.0/0", "128.0.0.0/1"} {
			box := connected(t, allow(engine.EgressRule{Prefix: netip.MustParsePrefix(wide)}))
			box.want(t, "connect", "tcp", at(world.site, 80))
			s.cut(t, box, "tcp", listener.Addr().String())
			s.cut(t, box, "tcp", at(world.neighbour, 80))
			s.cut(t, box, "udp", at(world.neighbour, 80))
		}
	})
	t.Run("a prefix inside the link-local network means it", func(t *testing.T) {
		s.leavesNothing(t)
		for name, rule := range map[string]netip.Prefix{
			"one address": prefix(world.neighbour), "a part": netip.PrefixFrom(world.neighbour, 28).Masked(), "the whole": netip.PrefixFrom(world.neighbour, 16).Masked(),
		} {
			t.Run(name, func(t *testing.T) {
				box := connected(t, allow(engine.EgressRule{Prefix: rule}))
				box.want(t, "connect", "tcp", at(world.neighbour, 80))
				s.cut(t, box, "tcp", at(world.site, 80))
			})
		}
	})
	t.Run("sandboxes do not reach each other", func(t *testing.T) {
		s.leavesNothing(t)
		first := connected(t, allow(engine.EgressRule{Any: true}))
		listed, _ := s.state(t, first.id)
		if !listed.IP.IsValid() {
			t.Skip("the engine gives sandboxes no address")
		}
		second := connected(t, allow(engine.EgressRule{Any: true}, engine.EgressRule{Prefix: prefix(listed.IP)}))
		s.cut(t, second, "tcp", at(listed.IP, 80))
	})
	t.Run("DNS only where granted", func(t *testing.T) {
		s.leavesNothing(t)
		granted := connected(t, engine.Network{DNS: true})
		wantEqual(t, "/etc/resolv.conf", granted.want(t, "read", "/etc/resolv.conf"), "nameserver "+world.resolver.String())
		granted.want(t, "connect", "udp", at(world.resolver, 53))
		granted.want(t, "connect", "tcp", at(world.resolver, 53))
		s.cut(t, granted, "tcp", at(world.resolver, 80))
		s.cut(t, granted, "udp", at(world.site, 53))
		without := connected(t, allow(engine.EgressRule{Prefix: prefix(world.site)}))
		s.cut(t, without, "udp", at(world.resolver, 53))
	})
	t.Run("no sender's address but its own", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.Network = allow(engine.EgressRule{Prefix: prefix(world.site)})
		spec.Security.CapabilitiesAdd = []string{"NET_ADMIN"}
		box := s.create(t, spec)
		forged, honest := "forged by "+spec.ID, "hello"
		if r := box.run(t, "send", "203.0.113.77", at(world.site, 80), forged); !r.ok() {
			t.Skipf("the sandbox cannot take another address: %+v", r)
		}
		// Packets keep their order, so once this one has arrived the other would
		// have.
		listed, _ := s.state(t, box.id)
		box.want(t, "connect", "udp", at(world.site, 80), listed.IP.String())
		got := world.datagrams()
		if !slices.ContainsFunc(got, func(d string) bool { return strings.Contains(d, honest) }) {
			t.Errorf("received %q; want %q among them", got, honest)
		}
		if slices.ContainsFunc(got, func(d string) bool { return strings.Contains(d, forged) }) {
			t.Errorf("a forged packet arrived: %q", got)
		}
	})
}
