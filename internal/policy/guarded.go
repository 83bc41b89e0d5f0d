package policy

import (
	"net/netip"
	"slices"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Guarded networks hold the cloud's metadata services and the machine itself:
// link-local, loopback and multicast. A rule reaches them only when it lies
// inside one of them; a wider network does not mean them, whatever else it
// means. Engines keep to the same (docs/adr/0005).

func guardedIPv4() [3]netip.Prefix {
	return [...]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254}), 16),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4),
	}
}

func guardedIPv6() [3]netip.Prefix {
	return [...]netip.Prefix{
		netip.PrefixFrom(netip.IPv6Loopback(), 128),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 10),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8),
	}
}

func listPrefixes(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		texts[i] = prefix.String()
	}
	return list(texts)
}

// guard takes guarded networks out of a wider one, and notes in touches which
// of them the rule, as it was written, has addresses of. The block has no
// problems.
func (g *grant) guard(block *sandboxv1.CidrBlock) {
	prefix := netip.MustParsePrefix(block.GetCidr())
	guarded := guardedIPv4()
	if prefix.Addr().Is6() {
		guarded = guardedIPv6()
	}
	for _, network := range guarded {
		switch {
		case !network.Overlaps(prefix):
		case network.Bits() <= prefix.Bits():
			g.touches = []netip.Prefix{network}
			return
		case g.addresses.overlaps(rangeOf(network)):
			g.touches = append(g.touches, network)
		}
	}
	if g.touches == nil {
		return
	}
	out := slices.Clone(g.touches)
	for _, except := range block.GetExcept() {
		out = append(out, netip.MustParsePrefix(except))
	}
	g.addresses = without(prefix, out)
}
