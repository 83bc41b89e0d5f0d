package oci

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"sync"
)

// addresses hands out candidates from the sandbox subnet. Whether a candidate
// is free is for the kernel to say, which refuses a second route to it: that
// holds between processes and between engines, too.
type addresses struct {
	subnet netip.Prefix

	mu   sync.Mutex
	next uint32
}

// newAddresses starts each engine at a place of its own, so that engines that
// share a subnet seldom meet.
func newAddresses(subnet netip.Prefix, name string) *addresses {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	return &addresses{subnet: subnet, next: hash.Sum32()}
}

// gateway is the subnet's first address; the host has it on every sandbox's
// link.
func (a *addresses) gateway() netip.Addr { return a.subnet.Addr().Next() }

// count is how many addresses there are for sandboxes: all but the subnet's
// own, the gateway and the last.
func (a *addresses) count() uint32 { return uint32(1)<<(32-a.subnet.Bits()) - 3 }

func (a *addresses) candidate() netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	offset := a.next%a.count() + 2
	a.next++
	base := a.subnet.Addr().As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+offset)
	return netip.AddrFrom4(out)
}
