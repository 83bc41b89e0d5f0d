package oci

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// firewall is one nftables table. Its base chains know sandboxes by the prefix
// of their interfaces' names and find everything else in maps and sets, so that
// a packet costs the same however many sandboxes there are:
//
//	spoofing    drops what does not come from the address the interface was given
//	forward     sends packets of a sandbox to its own chain, which accepts what
//	            its rules allow; the rest is refused, and nothing gets in
//	input       lets sandboxes speak to the host for DNS only, where granted
//	translate   gives what leaves the host's address
//
// An interface that is in no map reaches nothing.
type firewall struct {
	table      string
	linkPrefix string
	linkName   func(sandboxID string) string
	subnet     netip.Prefix
	internal   []netip.Prefix
	resolvers  []netip.Addr

	ready onceUntilDone
}

// onceUntilDone runs a function until it succeeds for the first time.
type onceUntilDone struct {
	mu   sync.Mutex
	done bool
}

func (o *onceUntilDone) do(f func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return nil
	}
	err := f()
	o.done = err == nil
	return err
}

// The names of the table's sets and maps.
const (
	setAddresses = "addresses" // interface . source address
	setDNS       = "dns"       // interfaces that may ask the resolvers
	setResolvers = "resolvers" // their addresses
	setInternal  = "internal"  // what Any does not mean
	setGuarded   = "guarded"   // what no wider prefix means
	mapEgress    = "egress"    // interface: its own chain
)

func (f *firewall) nftTable() *nftables.Table {
	return &nftables.Table{Name: f.table, Family: nftables.TableFamilyINet}
}

func (f *firewall) chainName(sandboxID string) string { return "from_" + f.linkName(sandboxID) }

type nftSets struct {
	addresses, dns, resolvers, internal, guarded, egress *nftables.Set
}

func sets(table *nftables.Table) nftSets {
	return nftSets{
		addresses: &nftables.Set{
			Table: table, Name: setAddresses, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr),
		},
		dns:       &nftables.Set{Table: table, Name: setDNS, KeyType: nftables.TypeIFName},
		resolvers: &nftables.Set{Table: table, Name: setResolvers, KeyType: nftables.TypeIPAddr},
		internal:  &nftables.Set{Table: table, Name: setInternal, KeyType: nftables.TypeIPAddr, Interval: true},
		guarded:   &nftables.Set{Table: table, Name: setGuarded, KeyType: nftables.TypeIPAddr, Interval: true},
		egress: &nftables.Set{
			Table: table, Name: mapEgress, IsMap: true,
			KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict,
		},
	}
}

// ensure makes the table and its base chains what they should be, in one
// transaction; what is there for sandboxes stays.
func (f *firewall) ensure() error {
	return f.ready.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		table := conn.AddTable(f.nftTable())
		s := sets(table)
		for _, set := range []*nftables.Set{s.addresses, s.dns, s.resolvers, s.internal, s.guarded, s.egress} {
			if err := conn.AddSet(set, nil); err != nil {
				return fmt.Errorf("declare set %s: %w", set.Name, err)
			}
		}
		conn.FlushSet(s.resolvers)
		conn.FlushSet(s.internal)
		conn.FlushSet(s.guarded)
		if err := errors.Join(
			conn.SetAddElements(s.resolvers, addressElements(f.resolvers)),
			conn.SetAddElements(s.internal, intervalElements(append([]netip.Prefix{f.subnet}, f.internal...))),
			conn.SetAddElements(s.guarded, intervalElements(guardedPrefixes())),
		); err != nil {
			return fmt.Errorf("fill sets: %w", err)
		}
		for _, base := range f.baseChains(table, s) {
			conn.AddChain(base.chain)
			conn.FlushChain(base.chain)
			for _, rule := range base.rules {
				conn.AddRule(&nftables.Rule{Table: table, Chain: base.chain, Exprs: rule})
			}
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("install nftables table %s: %w", f.table, err)
		}
		return nil
	})
}

type baseChain struct {
	chain *nftables.Chain
	rules [][]expr.Any
}

func (f *firewall) baseChains(table *nftables.Table, s nftSets) []baseChain {
	accept := nftables.ChainPolicyAccept
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, rules ...[]expr.Any) baseChain {
		return baseChain{&nftables.Chain{
			Table: table, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept,
		}, rules}
	}
	from := inputLinkPrefix(f.linkPrefix)
	to := outputLinkPrefix(f.linkPrefix)
	dns := func(protocol byte) []expr.Any {
		return rule(from, inputLinkIn(s.dns), isIPv4(), destinationIn(s.resolvers, false),
			isProtocol(protocol), destinationPorts(53, 53), verdict(expr.VerdictAccept))
	}
	return []baseChain{
		chain("spoofing", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw,
			rule(from, isIPv4(), inputLinkAndSourceIn(s.addresses), verdict(expr.VerdictAccept)),
			rule(from, verdict(expr.VerdictDrop)),
		),
		chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter,
			rule(from, isIPv4(), destinationWithin(f.subnet, true), refuse()),
			rule(from, isTracked(), verdict(expr.VerdictAccept)),
			dns(unix.IPPROTO_UDP), dns(unix.IPPROTO_TCP),
			rule(from, inputLinkMap(s.egress)),
			rule(from, refuse()),
			rule(to, isTracked(), verdict(expr.VerdictAccept)),
			rule(to, verdict(expr.VerdictDrop)),
		),
		chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter,
			rule(from, isTracked(), verdict(expr.VerdictAccept)),
			dns(unix.IPPROTO_UDP), dns(unix.IPPROTO_TCP),
			rule(from, refuse()),
		),
		chain("translate", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
			rule(isIPv4(), sourceWithin(f.subnet), []expr.Any{&expr.Masq{}}),
		),
	}
}

// admit lets a sandbox use its address and reach what spec allows, in one
// transaction. Doing it again changes nothing.
func (f *firewall) admit(sandboxID string, address netip.Addr, spec engine.Network) error {
	if err := f.ensure(); err != nil {
		return err
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := f.nftTable()
	s := sets(table)
	link := linkKey(f.linkName(sandboxID))
	chain := conn.AddChain(&nftables.Chain{Table: table, Name: f.chainName(sandboxID)})
	conn.FlushChain(chain)
	for _, exprs := range f.egressRules(s, spec.Egress) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	errs := []error{
		conn.SetAddElements(s.egress, []nftables.SetElement{{
			Key: link, VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name},
		}}),
		conn.SetAddElements(s.addresses, []nftables.SetElement{{Key: append(link[:len(link):len(link)], address.AsSlice()...)}}),
	}
	if spec.DNS {
		errs = append(errs, conn.SetAddElements(s.dns, []nftables.SetElement{{Key: link}}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("encode firewall rules: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install firewall rules: %w", err)
	}
	return nil
}

// revoke takes away all that admit may have made. address may be invalid when
// it is not known; then it is looked for.
func (f *firewall) revoke(sandboxID string, address netip.Addr) error {
	table := f.nftTable()
	s := sets(table)
	link := linkKey(f.linkName(sandboxID))
	var keys [][]byte
	if address.IsValid() {
		keys = append(keys, append(link[:len(link):len(link)], address.AsSlice()...))
	} else {
		found, err := f.addressKeys(link)
		if err != nil {
			return err
		}
		keys = found
	}
	// A transaction fails as a whole when one of its parts is not there, and
	// admit is one transaction: usually all is there, or nothing.
	whole := []func(*nftables.Conn) error{
		func(c *nftables.Conn) error {
			return c.SetDeleteElements(s.egress, []nftables.SetElement{{Key: link}})
		},
		func(c *nftables.Conn) error {
			c.DelChain(&nftables.Chain{Table: table, Name: f.chainName(sandboxID)})
			return nil
		},
	}
	for _, key := range keys {
		whole = append(whole, func(c *nftables.Conn) error {
			return c.SetDeleteElements(s.addresses, []nftables.SetElement{{Key: key}})
		})
	}
	dns := func(c *nftables.Conn) error {
		return c.SetDeleteElements(s.dns, []nftables.SetElement{{Key: link}})
	}
	for _, batch := range [][]func(*nftables.Conn) error{whole, {dns}} {
		if err := flushIgnoringAbsent(batch); err != nil {
			return fmt.Errorf("remove firewall rules: %w", err)
		}
	}
	return nil
}

func flushIgnoringAbsent(batch []func(*nftables.Conn) error) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	for _, add := range batch {
		if err := add(conn); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// addressKeys finds the elements of one interface in the set of addresses.
func (f *firewall) addressKeys(link []byte) ([][]byte, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list firewall tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == f.table }) {
		return nil, nil
	}
	elements, err := conn.GetSetElements(sets(f.nftTable()).addresses)
	if err != nil {
		return nil, fmt.Errorf("list firewall addresses: %w", err)
	}
	var keys [][]byte
	for _, element := range elements {
		if len(element.Key) >= len(link) && string(element.Key[:len(link)]) == string(link) {
			keys = append(keys, element.Key)
		}
	}
	return keys, nil
}

// uninstall removes the table.
func (f *firewall) uninstall() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	conn.DelTable(f.nftTable())
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", f.table, err)
	}
	return nil
}
