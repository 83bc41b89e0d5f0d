package policy_test

import (
	"net/netip"
	"testing"

	"github.com/sandbar-project/sandbar/internal/policy"
)

func TestPublicSources(t *testing.T) {
	const some = `{"controlPlaneAccess": {"sourceIpAllowlist": {"cidrs": ["198.51.100.0/24", "2001:db8::/32"]}}}`
	tests := []struct {
		name, policy, address string
		admitted              bool
	}{
		{"any without a list", `{"controlPlaneAccess": {}}`, "203.0.113.7", true},
		{"none under an empty list", `{"controlPlaneAccess": {"sourceIpAllowlist": {}}}`, "203.0.113.7", false},
		{"one that is listed", some, "198.51.100.7", true},
		{"one that is listed, written as IPv6", some, "::ffff:198.51.100.7", true},
		{"one that is not", some, "203.0.113.7", false},
		{"IPv6 that is listed", some, "2001:db8::7", true},
		{"IPv6 that is not", some, "2001:db9::7", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			compiled, err := policy.Compile(parsePolicy(t, test.policy))
			if err != nil {
				t.Fatal(err)
			}
			if got := compiled.AdmitsSource(netip.MustParseAddr(test.address)); got != test.admitted {
				t.Errorf("%s: %t", test.address, got)
			}
		})
	}
}
