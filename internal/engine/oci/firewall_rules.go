package oci

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Registers of the nftables machine: each holds 16 bytes, and they lie side by
// side, which is how values are joined into one key.
const (
	firstRegister  = unix.NFT_REG_1
	secondRegister = unix.NFT_REG_2
)

// Offsets in an IPv4 header.
const (
	ipv4Source      = 12
	ipv4Destination = 16
)

// rule joins what a packet must match, and what then becomes of it.
func rule(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// refuse answers at once that the destination is prohibited, so that a client
// sees an error and not a timeout.
func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}

// equals compares what the expression before it has put into the first register.
func equals(data []byte) *expr.Cmp {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: data}
}

// inputLinkPrefix compares fewer bytes than a name has, which matches a prefix.
func inputLinkPrefix(prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister}, equals([]byte(prefix))}
}

func outputLinkPrefix(prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: firstRegister}, equals([]byte(prefix))}
}

func inputLinkIn(set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&expr.Lookup{SourceRegister: firstRegister, SetName: set.Name, SetID: set.ID},
	}
}

func inputLinkMap(verdicts *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&expr.Lookup{SourceRegister: firstRegister, SetName: verdicts.Name, SetID: verdicts.ID, IsDestRegSet: true},
	}
}

func inputLinkAndSourceIn(set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		ipv4Address(secondRegister, ipv4Source),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set.Name, SetID: set.ID},
	}
}

func isIPv4() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister}, equals([]byte{unix.NFPROTO_IPV4})}
}

func ipv4Address(register, offset uint32) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func within(prefix netip.Prefix, offset uint32, op expr.CmpOp) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-prefix.Bits()))
	return []expr.Any{
		ipv4Address(firstRegister, offset),
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: firstRegister, Data: prefix.Masked().Addr().AsSlice()},
	}
}

func sourceWithin(prefix netip.Prefix) []expr.Any { return within(prefix, ipv4Source, expr.CmpOpEq) }

// destinationWithin matches inside the prefix, or outside it.
func destinationWithin(prefix netip.Prefix, inside bool) []expr.Any {
	if inside {
		return within(prefix, ipv4Destination, expr.CmpOpEq)
	}
	return within(prefix, ipv4Destination, expr.CmpOpNeq)
}

func destinationIn(set *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{
		ipv4Address(firstRegister, ipv4Destination),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set.Name, SetID: set.ID, Invert: invert},
	}
}

// isTracked matches packets of connections that were allowed when they began.
func isTracked() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: firstRegister},
		&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
			Xor:  make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
	}
}

func isProtocol(protocol byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}, equals([]byte{protocol})}
}

func destinationPorts(first, last uint16) []expr.Any {
	const offset, size = 2, 2
	return []expr.Any{
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size},
		&expr.Range{
			Op: expr.CmpOpEq, Register: firstRegister,
			FromData: binary.BigEndian.AppendUint16(nil, first),
			ToData:   binary.BigEndian.AppendUint16(nil, last),
		},
	}
}

// egressRules are one rule of nftables for each destination and range of ports.
// Create has refused prefixes of IPv6.
func (f *firewall) egressRules(s nftSets, rules []engine.EgressRule) [][]expr.Any {
	var out [][]expr.Any
	for _, r := range rules {
		destination := isIPv4()
		if r.Any {
			destination = rule(destination, destinationIn(s.internal, true))
		} else {
			destination = rule(destination, destinationWithin(r.Prefix, true))
			if opensByTheWay(r.Prefix) {
				destination = rule(destination, destinationIn(s.guarded, true))
			}
		}
		for _, except := range r.Except {
			if except.Addr().Is4() {
				destination = rule(destination, destinationWithin(except, false))
			}
		}
		if len(r.Ports) == 0 {
			out = append(out, rule(destination, verdict(expr.VerdictAccept)))
		}
		for _, ports := range r.Ports {
			out = append(out, rule(destination, isProtocol(protocols[ports.Protocol]),
				destinationPorts(ports.First, ports.Last), verdict(expr.VerdictAccept)))
		}
	}
	return out
}

// guardedPrefixes hold the clouds' metadata services and the machine itself:
// loopback, link-local and multicast networks.
func guardedPrefixes() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("224.0.0.0/4"),
	}
}

// opensByTheWay says whether the prefix has guarded addresses without lying
// inside one of their networks: then it does not mean them.
func opensByTheWay(prefix netip.Prefix) bool {
	return slices.ContainsFunc(guardedPrefixes(), func(guarded netip.Prefix) bool {
		return guarded.Overlaps(prefix) && prefix.Bits() < guarded.Bits()
	})
}

// protocols are the names an engine.PortRange may use.
var protocols = map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}

// linkKey is an interface's name as the kernel compares it.
func linkKey(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}

func addressElements(addresses []netip.Addr) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, address := range addresses {
		if address.Is4() {
			elements = append(elements, nftables.SetElement{Key: address.AsSlice()})
		}
	}
	return elements
}

// intervalElements are the boundaries of a set of IPv4 prefixes: the kernel
// wants them apart from each other, so what touches or overlaps is joined.
func intervalElements(prefixes []netip.Prefix) []nftables.SetElement {
	type interval struct{ start, end uint64 } // [start, end)
	var intervals []interval
	for _, prefix := range prefixes {
		if !prefix.Addr().Is4() {
			continue
		}
		base := prefix.Masked().Addr().As4()
		start := uint64(binary.BigEndian.Uint32(base[:]))
		intervals = append(intervals, interval{start, start + 1<<(32-prefix.Bits())})
	}
	slices.SortFunc(intervals, func(a, b interval) int { return int(int64(a.start) - int64(b.start)) })
	var joined []interval
	for _, next := range intervals {
		if n := len(joined); n > 0 && next.start <= joined[n-1].end {
			joined[n-1].end = max(joined[n-1].end, next.end)
			continue
		}
		joined = append(joined, next)
	}
	var elements []nftables.SetElement
	for _, i := range joined {
		elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(i.start))})
		if i.end <= 0xffffffff {
			elements = append(elements, nftables.SetElement{
				Key: binary.BigEndian.AppendUint32(nil, uint32(i.end)), IntervalEnd: true,
			})
		}
	}
	return elements
}
