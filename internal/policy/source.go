package policy

import (
	"net/netip"
	"slices"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// sourceRules are policy.control_plane_access.source_ip_allowlist.
type sourceRules struct {
	// restricted is whether there is a list at all; an empty one admits no
	// public source.
	restricted bool
	prefixes   []netip.Prefix
}

// AdmitsSource says whether the policy lets requests in from a public address.
// Which addresses are public, and which is the peer's, is for the caller to
// know.
func (c *Compiled) AdmitsSource(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return !c.sources.restricted ||
		slices.ContainsFunc(c.sources.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func compileSources(allowlist *sandboxv1.SourceIpAllowlist) sourceRules {
	rules := sourceRules{restricted: allowlist != nil}
	for _, text := range allowlist.GetCidrs() {
		if p, problem := parsePrefix(text); problem == "" {
			rules.prefixes = append(rules.prefixes, p)
		}
	}
	return rules
}
