package policy

import (
	"net/netip"
	"slices"
	"sort"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// addressRange is every address of one family from first to last.
type addressRange struct {
	first, last netip.Addr
}

// addressSet is a set of addresses as ranges in order that neither overlap nor
// touch, so that a range lies in the set exactly when it lies in one of them.
type addressSet []addressRange

func rangeOf(p netip.Prefix) addressRange {
	first := p.Masked().Addr()
	bytes := first.AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return addressRange{first, last}
}

// without is all of prefix that none of except holds.
func without(prefix netip.Prefix, except []netip.Prefix) addressSet {
	whole := rangeOf(prefix)
	if len(except) == 0 {
		return addressSet{whole}
	}
	holes := make([]addressRange, 0, len(except))
	for _, e := range except {
		if e.Overlaps(prefix) {
			holes = append(holes, rangeOf(e))
		}
	}
	slices.SortFunc(holes, func(a, b addressRange) int { return a.first.Compare(b.first) })

	var set addressSet
	next := whole.first
	for _, hole := range holes {
		if next.Less(hole.first) {
			set = append(set, addressRange{next, hole.first.Prev()})
		}
		if !hole.last.Less(next) {
			next = hole.last.Next()
		}
		if !next.IsValid() || whole.last.Less(next) {
			return set
		}
	}
	return append(set, addressRange{next, whole.last})
}

// contains says whether every address of other is in s.
func (s addressSet) contains(other addressSet) bool {
	for _, r := range other {
		// The last range that begins at or before r.
		i := sort.Search(len(s), func(i int) bool { return r.first.Less(s[i].first) }) - 1
		if i < 0 || s[i].last.Less(r.last) {
			return false
		}
	}
	return true
}

// overlaps says whether s has an address of r.
func (s addressSet) overlaps(r addressRange) bool {
	return slices.ContainsFunc(s, func(own addressRange) bool {
		return !r.last.Less(own.first) && !own.last.Less(r.first)
	})
}

// internal are the networks that may be the platform's own, or that stand for
// such, and those that are no part of the internet: this network, private use,
// shared address space, loopback, link-local (where clouds keep their
// metadata), protocol assignments, benchmarking, multicast, reserved, unique
// local, and translations of IPv4. Engines leave at least these out of "any"
// (docs/adr/0005).
func internal() (v4, v6 []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
	} {
		v4 = append(v4, netip.MustParsePrefix(text))
	}
	for _, text := range []string{
		"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "fc00::/7", "fe80::/10", "ff00::/8",
	} {
		v6 = append(v6, netip.MustParsePrefix(text))
	}
	return v4, v6
}

// external is every address that "any" surely means.
func external() addressSet {
	v4, v6 := internal()
	return append(
		without(netip.MustParsePrefix("0.0.0.0/0"), v4),
		without(netip.MustParsePrefix("::/0"), v6)...)
}

// parsePrefix reads a network in its canonical spelling.
func parsePrefix(text string) (prefix netip.Prefix, problem string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, `is not a network; write an address and a length such as "203.0.113.0/24" or "2001:db8::/32"`
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, "is an IPv4 network written as IPv6; write it as IPv4"
	}
	if masked := p.Masked(); masked.String() != text {
		return netip.Prefix{}, "is not in canonical form; write " + quote(masked.String())
	}
	return p, ""
}

// parseBlock reads a network with exceptions.
func parseBlock(block *sandboxv1.CidrBlock) (addressSet, []problem) {
	prefix, text := parsePrefix(block.GetCidr())
	if text != "" {
		return nil, []problem{{"cidr", "INVALID_CIDR", quote(block.GetCidr()) + " " + text}}
	}
	var problems []problem
	var except []netip.Prefix
	if n := len(block.GetExcept()); n > 0 {
		except = make([]netip.Prefix, 0, n)
	}
	for i, entry := range block.GetExcept() {
		p, text := parsePrefix(entry)
		if text == "" && (p.Bits() <= prefix.Bits() || !prefix.Contains(p.Addr())) {
			text = "is not a part of " + quote(block.GetCidr())
		}
		if text != "" {
			problems = append(problems, problem{element("except", i), "INVALID_CIDR", quote(entry) + " " + text})
			continue
		}
		except = append(except, p)
	}
	if problems != nil {
		return nil, problems
	}
	return without(prefix, except), nil
}
