package policy

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// blocks draws networks with exceptions inside sixteen addresses, few enough to
// look at each.
func blocks(universe netip.Prefix) *rapid.Generator[*sandboxv1.CidrBlock] {
	prefix := func(t *rapid.T, within netip.Prefix) netip.Prefix {
		bits := rapid.IntRange(within.Bits(), within.Addr().BitLen()).Draw(t, "bits")
		addr := within.Addr()
		for range rapid.IntRange(0, 15).Draw(t, "offset") {
			if next := addr.Next(); within.Contains(next) {
				addr = next
			}
		}
		return netip.PrefixFrom(addr, bits).Masked()
	}
	return rapid.Custom(func(t *rapid.T) *sandboxv1.CidrBlock {
		whole := prefix(t, universe)
		block := &sandboxv1.CidrBlock{Cidr: whole.String()}
		for range rapid.IntRange(0, 4).Draw(t, "exceptions") {
			if except := prefix(t, whole); except.Bits() > whole.Bits() {
				block.Except = append(block.Except, except.String())
			}
		}
		return block
	})
}

// holds says of one address whether a block means it, straight from its text.
func holds(block *sandboxv1.CidrBlock, addr netip.Addr) bool {
	if !netip.MustParsePrefix(block.GetCidr()).Contains(addr) {
		return false
	}
	for _, except := range block.GetExcept() {
		if netip.MustParsePrefix(except).Contains(addr) {
			return false
		}
	}
	return true
}

func TestANetworkIsInsideAnotherWhenEachAddressIs(t *testing.T) {
	for _, universe := range []string{"203.0.113.16/28", "0.0.0.0/28", "255.255.255.240/28", "2001:db8::/124", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124"} {
		t.Run(universe, func(t *testing.T) {
			prefix := netip.MustParsePrefix(universe)
			rapid.Check(t, func(t *rapid.T) {
				inner, outer := blocks(prefix).Draw(t, "inner"), blocks(prefix).Draw(t, "outer")
				want := true
				for addr := prefix.Addr(); prefix.Contains(addr); addr = addr.Next() {
					want = want && (!holds(inner, addr) || holds(outer, addr))
				}
				innerSet, problems := parseBlock(inner)
				if problems != nil {
					t.Fatal(problems)
				}
				outerSet, problems := parseBlock(outer)
				if problems != nil {
					t.Fatal(problems)
				}
				if got := outerSet.contains(innerSet); got != want {
					t.Fatalf("%v in %v: %t, want %t", inner, outer, got, want)
				}
			})
		})
	}
}

func TestPortsAreInsideOthersWhenEachPortIs(t *testing.T) {
	ports := rapid.Custom(func(t *rapid.T) []*sandboxv1.PortRange {
		var out []*sandboxv1.PortRange
		for range rapid.IntRange(0, 4).Draw(t, "ranges") {
			first := rapid.Int32Range(1, 12).Draw(t, "first")
			out = append(out, &sandboxv1.PortRange{
				Protocol: rapid.SampledFrom([]string{"", "TCP", "UDP", "SCTP"}).Draw(t, "protocol"),
				Port:     first,
				EndPort:  rapid.SampledFrom([]int32{0, first, first + 1, first + 3}).Draw(t, "end"),
			})
		}
		return out
	})
	holds := func(ports []*sandboxv1.PortRange, over protocol, port int32) bool {
		for _, p := range ports {
			if own, _ := parseProtocol(p.GetProtocol()); own == over && p.GetPort() <= port && port <= max(p.GetPort(), p.GetEndPort()) {
				return true
			}
		}
		return len(ports) == 0
	}
	rapid.Check(t, func(t *rapid.T) {
		inner, outer := ports.Draw(t, "inner"), ports.Draw(t, "outer")
		// No ports also means the protocols that have none.
		want := len(inner) > 0 || len(outer) == 0
		for over := range protocolCount {
			for port := int32(1); port <= 20; port++ {
				want = want && (!holds(inner, over, port) || holds(outer, over, port))
			}
		}
		innerSet, _ := parsePorts(inner)
		outerSet, _ := parsePorts(outer)
		if got := outerSet.contains(innerSet); got != want {
			t.Fatalf("%v in %v: %t, want %t", inner, outer, got, want)
		}
	})
}

func TestANameIsInsideAnotherWhenEverythingItStandsForIs(t *testing.T) {
	// Every name of up to four labels out of three.
	var universe []string
	level := []string{""}
	for range 4 {
		var next []string
		for _, rest := range level {
			for _, label := range []string{"a", "b", "c"} {
				next = append(next, strings.TrimSuffix(label+"."+rest, "."))
			}
		}
		universe = append(universe, next...)
		level = next
	}
	stands := func(pattern, name string) bool {
		if pattern == "*" || pattern == name {
			return true
		}
		first, rest, ok := strings.Cut(name, ".")
		return ok && first != "" && pattern == "*."+rest
	}
	patterns := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom(universe[:39]).Draw(t, "name")
		switch rapid.IntRange(0, 4).Draw(t, "form") {
		case 0:
			return "*"
		case 1, 2:
			return "*." + name
		}
		return name
	})
	rapid.Check(t, func(t *rapid.T) {
		inner, outer := patterns.Draw(t, "inner"), patterns.Draw(t, "outer")
		covers, overlaps := true, false
		for _, name := range universe {
			covers = covers && (!stands(inner, name) || stands(outer, name))
			overlaps = overlaps || stands(inner, name) && stands(outer, name)
		}
		if got := newHostname(outer).covers(newHostname(inner)); got != covers {
			t.Fatalf("%s covers %s: %t, want %t", outer, inner, got, covers)
		}
		if got := newHostname(outer).overlaps(newHostname(inner)); got != overlaps {
			t.Fatalf("%s overlaps %s: %t, want %t", outer, inner, got, overlaps)
		}
	})
}

func FuzzQuantity(f *testing.F) {
	for _, seed := range []string{"500m", "2", "2.5", "128Mi", "1Gi", "1e3", "1E", "0", "-1", "1e999999999", "9223372036854775808", ".5", "1.0000000001Gi", "100m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, u := range []unit{cpu, memory} {
			amount, problem := u.parse(text)
			if (problem == "") != (amount > 0) {
				t.Errorf("%s %q: %d, %q", u, text, amount, problem)
			}
			if problem != "" {
				continue
			}
			if again, problem := u.parse(u.format(amount)); again != amount || problem != "" {
				t.Errorf("%s %q is %d, which reads back as %d: %s", u, text, amount, again, problem)
			}
		}
	})
}

func FuzzCIDR(f *testing.F) {
	for _, seed := range []string{"10.0.0.0/8", "10.0.0.1/8", "0.0.0.0/0", "::/0", "2001:db8::/32", "::ffff:1.2.3.0/120", "fe80::%eth0/64", "1.2.3.4", "01.2.3.4/32"} {
		f.Add(seed, "10.1.0.0/16")
	}
	f.Fuzz(func(t *testing.T, text, except string) {
		set, problems := parseBlock(&sandboxv1.CidrBlock{Cidr: text, Except: []string{except}})
		if problems != nil {
			return
		}
		whole, without := netip.MustParsePrefix(text), netip.MustParsePrefix(except)
		if whole.String() != text || without.String() != except {
			t.Errorf("%q except %q is not canonical", text, except)
		}
		everything := everywhere()
		if len(set) == 0 || !everything.contains(set) || !(addressSet{rangeOf(whole)}).contains(set) || set.contains(addressSet{rangeOf(without)}) {
			t.Errorf("%q except %q is %v", text, except, set)
		}
	})
}

func FuzzHostname(f *testing.F) {
	for _, seed := range []string{"example.com", "*.example.com", "*", "EXAMPLE.com", "1.2.3.4", "xn--bcher-kva.example", "a..b", "-a.example", "example.com.", "*.*.example", "0x7f.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if hostnameProblem(text, false) != "" {
			return
		}
		name := newHostname(text)
		if !name.covers(name) || !newHostname("*").covers(name) || !newHostname(strings.ToUpper(text)).covers(name) {
			t.Errorf("%q is not inside itself", text)
		}
		if _, err := netip.ParseAddr(text); err == nil {
			t.Errorf("%q is an address", text)
		}
		if strings.HasPrefix(text, "*.") && name.covers(newHostname(text[2:])) {
			t.Errorf("%q stands for the name without the wildcard", text)
		}
	})
}
