package policy

import (
	"slices"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Normalize is the policy as it is stored and returned: older field names give
// way to the newest (dns_name, dns_name_except and deny_dns to https_hostname,
// https_hostname_except and deny_https_hostname_rules), and runtime class
// mappings are ordered by class. All else, and whether it is present, stays as
// it was given. The argument is not changed; nil stays nil.
func Normalize(p *sandboxv1.Policy) *sandboxv1.Policy {
	if p == nil {
		return nil
	}
	out := proto.CloneOf(p)
	if network := out.GetConstraints().GetNetwork(); network != nil {
		if network.DenyHttpsHostnameRules == nil {
			network.DenyHttpsHostnameRules = network.DenyDns
		}
		network.DenyDns = nil
		for _, rules := range [][]*sandboxv1.PolicyEgressRule{network.GetAllowedEgress(), network.GetDefaultEgress()} {
			for _, rule := range rules {
				normalizeRule(rule)
			}
		}
	}
	if security := out.GetConstraints().GetSecurity(); security != nil {
		slices.SortStableFunc(security.GetRuntimeClassMappings(), func(a, b *sandboxv1.RuntimeClassMapping) int {
			return int(a.GetRuntimeClass()) - int(b.GetRuntimeClass())
		})
	}
	return out
}

func normalizeRule(rule *sandboxv1.PolicyEgressRule) {
	if older, ok := rule.GetDestination().(*sandboxv1.PolicyEgressRule_DnsName); ok {
		rule.Destination = &sandboxv1.PolicyEgressRule_HttpsHostname{HttpsHostname: older.DnsName}
	}
	if len(rule.GetHttpsHostnameExcept()) == 0 {
		rule.HttpsHostnameExcept = rule.GetDnsNameExcept()
	}
	rule.DnsNameExcept = nil
}
