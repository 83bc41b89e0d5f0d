package oci

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sandbar-project/sandbar/internal/engine"
)

func TestPrefixesOfIPv6AreRefused(t *testing.T) {
	err := checkSpec(engine.Spec{
		ID: "sandbox", Hostname: "sandbox", ImageDigest: "sha256:" + strings.Repeat("0", 64),
		Network: engine.Network{Egress: []engine.EgressRule{
			{Prefix: netip.MustParsePrefix("192.0.2.0/24")},
			{Prefix: netip.MustParsePrefix("2001:db8::/32")},
		}},
	})
	if err == nil || !strings.Contains(err.Error(), "egress rule 1: 2001:db8::/32") || strings.Contains(err.Error(), "egress rule 0") {
		t.Errorf("got %v; want the second rule refused, alone", err)
	}
}
