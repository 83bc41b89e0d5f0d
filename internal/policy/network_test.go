package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// The rules that sandboxes declare.

func toCIDR(cidr string, except ...string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Cidr{Cidr: &sandboxv1.CidrBlock{Cidr: cidr, Except: except}}}
}

func toHost(name string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_DnsName{DnsName: name}}
}

func toAny() *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Any{Any: true}}
}

func toTenant(scope sandboxv1.TenantScope) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Tenant{Tenant: scope}}
}

func toPods(pods, namespaces map[string]string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Selector{Selector: &sandboxv1.SelectorBlock{PodLabels: pods, NamespaceLabels: namespaces}}}
}

// on gives a rule ports.
func on(rule *sandboxv1.EgressRule, ports ...*sandboxv1.PortRange) *sandboxv1.EgressRule {
	rule.Ports = ports
	return rule
}

func port(protocol string, first, last int32) *sandboxv1.PortRange {
	return &sandboxv1.PortRange{Protocol: protocol, Port: first, EndPort: last}
}

// entitle is a policy's rule that reads like a declared one.
func entitle(rule *sandboxv1.EgressRule, except ...string) *sandboxv1.PolicyEgressRule {
	out := &sandboxv1.PolicyEgressRule{Ports: rule.GetPorts(), HttpsHostnameExcept: except}
	switch to := rule.GetDestination().(type) {
	case *sandboxv1.EgressRule_Cidr:
		out.Destination = &sandboxv1.PolicyEgressRule_Cidr{Cidr: to.Cidr}
	case *sandboxv1.EgressRule_DnsName:
		out.Destination = &sandboxv1.PolicyEgressRule_HttpsHostname{HttpsHostname: to.DnsName}
	case *sandboxv1.EgressRule_Tenant:
		out.Destination = &sandboxv1.PolicyEgressRule_Tenant{Tenant: to.Tenant}
	case *sandboxv1.EgressRule_Any:
		out.Destination = &sandboxv1.PolicyEgressRule_Any{Any: to.Any}
	case *sandboxv1.EgressRule_Selector:
		out.Destination = &sandboxv1.PolicyEgressRule_Selector{Selector: to.Selector}
	}
	return out
}

func networking(c *sandboxv1.NetworkConstraints) *sandboxv1.Policy {
	return constrained(&sandboxv1.PolicyConstraints{Network: c})
}

func allowing(rules ...*sandboxv1.PolicyEgressRule) *sandboxv1.Policy {
	return networking(&sandboxv1.NetworkConstraints{AllowedEgress: rules})
}

func reaching(rules ...*sandboxv1.EgressRule) *sandboxv1.SandboxSpec {
	return sandbox(func(s *sandboxv1.SandboxSpec) { s.Network = &sandboxv1.NetworkOptions{Egress: rules} })
}

func TestADeclaredRuleLiesWhollyInsideOneEntitlement(t *testing.T) {
	type rule = *sandboxv1.EgressRule
	type labels = map[string]string
	const (
		sameUser       = sandboxv1.TenantScope_TENANT_SCOPE_SAME_USER
		sameOrg        = sandboxv1.TenantScope_TENANT_SCOPE_SAME_ORG
		sandboxNetwork = sandboxv1.TenantScope_TENANT_SCOPE_SANDBOX_NETWORK
	)
	tests := []struct {
		name     string
		declared rule
		allowed  []*sandboxv1.PolicyEgressRule
		admitted bool
	}{
		{"an empty envelope restricts nothing", toCIDR("10.0.0.0/8"), nil, true},

		{"an empty envelope does not open link-local networks", toCIDR("169.254.169.254/32"), nil, false},
		{"nor those of IPv6", toCIDR("fe80::/64"), nil, false},
		{"nor loopback", toCIDR("127.0.0.0/24"), nil, false},
		{"nor loopback of IPv6", toCIDR("::1/128"), nil, false},
		{"nor multicast", toCIDR("224.0.0.251/32"), nil, false},
		{"nor multicast of IPv6", toCIDR("ff02::/16"), nil, false},
		{"nor a network that holds one of them", toCIDR("0.0.0.0/0"), nil, false},
		{"nor one that excepts a part of it", toCIDR("169.0.0.0/8", "169.254.0.0/17"), nil, false},
		{"a network that excepts all of it", toCIDR("169.0.0.0/8", "169.254.0.0/16"), nil, true},
		{"a network that excepts more than it", toCIDR("168.0.0.0/7", "169.0.0.0/8"), nil, true},
		{"a link-local address that is listed", toCIDR("169.254.169.254/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("169.254.169.0/24"))}, true},
		{"a wide rule of the policy lists none", toCIDR("169.254.169.254/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0"))}, false},
		{"nor does one that just holds it", toCIDR("169.254.0.0/16"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("169.254.0.0/15"))}, false},
		{"a wide rule does not mean it", toCIDR("169.254.0.0/15"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "169.254.0.0/16"))}, true},
		{"a link-local network beside a wide rule", toCIDR("169.254.169.254/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0")), entitle(toCIDR("169.254.169.254/32"))}, true},

		{"the same network", toCIDR("203.0.113.0/24"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, true},
		{"a part of the network", toCIDR("203.0.113.128/25"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, true},
		{"one address of it", toCIDR("203.0.113.7/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, true},
		{"more than the network", toCIDR("203.0.112.0/23"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, false},
		{"another network", toCIDR("198.51.100.0/24"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, false},
		{"the other family", toCIDR("2001:db8::/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0"))}, false},
		{"IPv6 inside IPv6", toCIDR("2001:db8:1::/48"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("2001:db8::/32"))}, true},
		{"everything inside everything", toCIDR("0.0.0.0/0"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0"))}, true},

		{"an exception of the policy is kept", toCIDR("0.0.0.0/0", "10.0.0.0/8"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, true},
		{"an exception of the policy is left out", toCIDR("0.0.0.0/0"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, false},
		{"an exception of the policy is kept in two parts", toCIDR("0.0.0.0/0", "10.0.0.0/9", "10.128.0.0/9"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, true},
		{"an exception of the policy is kept but for one address", toCIDR("10.0.0.0/30", "10.0.0.0/32", "10.0.0.1/32", "10.0.0.2/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, false},
		{"a wider exception of the sandbox", toCIDR("0.0.0.0/0", "8.0.0.0/6"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, true},
		{"a network inside an exception", toCIDR("10.1.0.0/16"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, false},
		{"a network that holds an exception", toCIDR("10.0.0.0/7"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, false},
		{"a network beside the exceptions", toCIDR("11.0.0.0/8"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "10.0.0.0/8"))}, true},
		{"a wider network whose exceptions leave only what is allowed", toCIDR("0.0.0.0/0", "128.0.0.0/1"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/1"))}, true},
		{"the last address of an exception at the end", toCIDR("255.255.255.255/32"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0", "255.255.255.255/32"))}, false},
		{"two entitlements that only together hold the rule", toCIDR("203.0.113.0/24"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/25")), entitle(toCIDR("203.0.113.128/25"))}, false},
		{"the second of two entitlements", toCIDR("198.51.100.0/24"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24")), entitle(toCIDR("198.51.100.0/24"))}, true},

		{"every port inside every port", toCIDR("203.0.113.0/24"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, true},
		{"every port inside one", toCIDR("203.0.113.0/24"), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 443, 0)))}, false},
		{"every port is more than all of all protocols", toCIDR("203.0.113.0/24"), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 1, 65535), port("UDP", 1, 65535), port("SCTP", 1, 65535)))}, false},
		{"one port inside every port", on(toCIDR("203.0.113.0/24"), port("UDP", 53, 0)), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}, true},
		{"TCP where no protocol is named", on(toCIDR("203.0.113.0/24"), port("", 443, 0)), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 443, 443)))}, true},
		{"another protocol", on(toCIDR("203.0.113.0/24"), port("UDP", 443, 0)), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 443, 0)))}, false},
		{"a range in two that touch", on(toCIDR("203.0.113.0/24"), port("TCP", 80, 90)), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 85, 95), port("TCP", 80, 84)))}, true},
		{"a range over a gap", on(toCIDR("203.0.113.0/24"), port("TCP", 80, 90)), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 80, 84), port("TCP", 86, 90)))}, false},
		{"one port of two is outside", on(toCIDR("203.0.113.0/24"), port("TCP", 443, 0), port("TCP", 8443, 0)), []*sandboxv1.PolicyEgressRule{entitle(on(toCIDR("203.0.113.0/24"), port("TCP", 443, 0)))}, false},

		{"any inside any", toAny(), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, true},
		{"any inside any, on fewer ports", on(toAny(), port("TCP", 443, 0)), []*sandboxv1.PolicyEgressRule{entitle(on(toAny(), port("TCP", 1, 1023)))}, true},
		{"any is more than every address", toAny(), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0"))}, false},
		{"a public network inside any", toCIDR("8.8.8.0/24"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, true},
		{"a public IPv6 network inside any", toCIDR("2606:4700::/32"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, true},
		{"the metadata address is never any", toCIDR("169.254.169.254/32"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{"a private network is not any", toCIDR("10.0.0.0/8"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{"multicast is not any", toCIDR("239.0.0.0/8"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{"loopback is not any", toCIDR("127.0.0.1/32"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{"unique local is not any", toCIDR("fd00::/8"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{"translated IPv4 is not any", toCIDR("64:ff9b::a9fe:a9fe/128"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{"everything holds the private networks", toCIDR("0.0.0.0/0"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
		{
			"everything but what any leaves out", toCIDR("0.0.0.0/0", "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
				"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3"),
			[]*sandboxv1.PolicyEgressRule{entitle(toAny())},
			true,
		},
		{"a private network that is entitled beside any", toCIDR("10.1.0.0/16"), []*sandboxv1.PolicyEgressRule{entitle(toAny()), entitle(toCIDR("10.0.0.0/8"))}, true},

		{"the same name", toHost("api.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("api.example.com"))}, true},
		{"the same name in another case", toHost("API.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("api.Example.com"))}, true},
		{"another name", toHost("api.example.org"), []*sandboxv1.PolicyEgressRule{entitle(toHost("api.example.com"))}, false},
		{"one label for a wildcard", toHost("api.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"))}, true},
		{"no label for a wildcard", toHost("example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"))}, false},
		{"two labels for a wildcard", toHost("a.b.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"))}, false},
		{"a wildcard inside the same wildcard", toHost("*.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"))}, true},
		{"a wildcard inside one name", toHost("*.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("api.example.com"))}, false},
		{"a wildcard below a wildcard", toHost("*.b.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"))}, false},
		{"any name inside every name", toHost("*.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*"))}, true},
		{"a name inside any", toHost("api.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, true},
		{"a name inside any on port 443", toHost("api.example.com"), []*sandboxv1.PolicyEgressRule{entitle(on(toAny(), port("TCP", 443, 0)))}, true},
		{"a name inside any on port 80", toHost("api.example.com"), []*sandboxv1.PolicyEgressRule{entitle(on(toAny(), port("TCP", 80, 0)))}, false},
		{"a name inside every address", toHost("api.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0"))}, false},
		{"a name with the one port it may have", on(toHost("api.example.com"), port("TCP", 443, 0)), []*sandboxv1.PolicyEgressRule{entitle(toHost("*"))}, true},
		{"an excepted name", toHost("bad.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"), "bad.example.com")}, false},
		{"a name beside the excepted one", toHost("good.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*.example.com"), "bad.example.com")}, true},
		{"a wildcard that holds an excepted name", toHost("*.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toHost("*"), "bad.example.com")}, false},
		{"a name under an excepted wildcard", toHost("x.bad.example.com"), []*sandboxv1.PolicyEgressRule{entitle(toAny(), "*.bad.example.com")}, false},

		{"the same tenant scope", toTenant(sandboxNetwork), []*sandboxv1.PolicyEgressRule{entitle(toTenant(sandboxNetwork))}, true},
		{"a user is part of an organization", toTenant(sameUser), []*sandboxv1.PolicyEgressRule{entitle(toTenant(sameOrg))}, true},
		{"an organization is more than a user", toTenant(sameOrg), []*sandboxv1.PolicyEgressRule{entitle(toTenant(sameUser))}, false},
		{"a tenant inside any", toTenant(sameUser), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},

		{"the same labels", toPods(labels{"app": "db"}, nil), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db"}, nil))}, true},
		{"more labels choose less", toPods(labels{"app": "db", "tier": "1"}, nil), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db"}, nil))}, true},
		{"fewer labels choose more", toPods(labels{"app": "db"}, nil), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db", "tier": "1"}, nil))}, false},
		{"another value of a label", toPods(labels{"app": "web"}, nil), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db"}, nil))}, false},
		{"another namespace than one's own", toPods(labels{"app": "db"}, labels{"team": "a"}), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db"}, nil))}, false},
		{"one's own namespace where another is entitled", toPods(labels{"app": "db"}, nil), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db"}, labels{"team": "a"}))}, false},
		{"fewer of the entitled namespaces", toPods(labels{"app": "db"}, labels{"team": "a", "env": "x"}), []*sandboxv1.PolicyEgressRule{entitle(toPods(labels{"app": "db"}, labels{"team": "a"}))}, true},
		{"a selector inside any", toPods(labels{"app": "db"}, nil), []*sandboxv1.PolicyEgressRule{entitle(toAny())}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resolved, err := policy.Resolve(policy.Request{Spec: reaching(test.declared), Policy: allowing(test.allowed...)})
			if admitted := err == nil; admitted != test.admitted {
				t.Fatalf("admitted %t, want %t: %v", admitted, test.admitted, err)
			}
			if err != nil {
				reason, rules := refusalOf(t, err)
				if want := []string{"spec.network.egress[0] ALLOWED_EGRESS"}; reason != apierr.PolicyViolation || !cmp.Equal(rules, want) {
					t.Errorf("%s %v", reason, rules)
				}
			} else if diff := cmp.Diff([]*sandboxv1.EgressRule{test.declared}, resolved.Egress, protocmp.Transform()); diff != "" {
				t.Errorf("the rule is not echoed as it was given (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNetworkRulesWithoutAMeaningAreRefused(t *testing.T) {
	const at = "spec.network.egress[0]"
	tests := []struct {
		name string
		rule *sandboxv1.EgressRule
		want []string
	}{
		{"no destination", &sandboxv1.EgressRule{}, []string{at + " DESTINATION_REQUIRED"}},
		{"any that is false", &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Any{}}, []string{at + ".any INVALID_ANY"}},
		{"an address without a length", toCIDR("203.0.113.7"), []string{at + ".cidr.cidr INVALID_CIDR"}},
		{"a network with bits of a host", toCIDR("203.0.113.7/24"), []string{at + ".cidr.cidr INVALID_CIDR"}},
		{"IPv4 written as IPv6", toCIDR("::ffff:203.0.113.0/120"), []string{at + ".cidr.cidr INVALID_CIDR"}},
		{"IPv6 not in its short form", toCIDR("2001:0db8::/32"), []string{at + ".cidr.cidr INVALID_CIDR"}},
		{"an exception outside", toCIDR("203.0.113.0/24", "198.51.100.0/24"), []string{at + ".cidr.except[0] INVALID_CIDR"}},
		{"an exception of everything", toCIDR("203.0.113.0/24", "203.0.113.0/24"), []string{at + ".cidr.except[0] INVALID_CIDR"}},
		{"an exception wider than the network", toCIDR("203.0.113.0/24", "203.0.0.0/16"), []string{at + ".cidr.except[0] INVALID_CIDR"}},
		{"an exception of the other family", toCIDR("0.0.0.0/0", "2001:db8::/32"), []string{at + ".cidr.except[0] INVALID_CIDR"}},
		{"every name", toHost("*"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"no name", toHost(""), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"an address for a name", toHost("169.254.169.254"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"an address in hexadecimal for a name", toHost("0xa9fea9fe"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"an IPv6 address for a name", toHost("fe80::1"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"a wildcard in the middle", toHost("api.*.com"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"a wildcard in a label", toHost("a*.example.com"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"a name that ends with a dot", toHost("example.com."), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"an address of a page", toHost("https://example.com"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"a name that is not in ASCII", toHost("bücher.example"), []string{at + ".dns_name INVALID_HOSTNAME"}},
		{"a name on another port", on(toHost("example.com"), port("TCP", 80, 0)), []string{at + ".ports INVALID_PORT"}},
		{"a name over UDP", on(toHost("example.com"), port("UDP", 443, 0)), []string{at + ".ports INVALID_PORT"}},
		{"no tenant scope", toTenant(0), []string{at + ".tenant INVALID_TENANT"}},
		{"an unknown tenant scope", toTenant(9), []string{at + ".tenant INVALID_TENANT"}},
		{"a selector of everything", toPods(nil, nil), []string{at + ".selector.pod_labels REQUIRED"}},
		{"a label that Kubernetes has not", toPods(map[string]string{"-": "a b"}, nil), []string{at + ".selector.pod_labels INVALID_LABEL", at + `.selector.pod_labels["-"] INVALID_LABEL`}},
		{"everything wrong with a rule", on(toCIDR("nowhere"), port("ICMP", 0, 0), port("", 90, 80), port("UDP", 1, 70000)), []string{
			at + ".ports[0].protocol INVALID_PROTOCOL", at + ".ports[0].port INVALID_PORT", at + ".ports[1].end_port INVALID_PORT",
			at + ".ports[2].end_port INVALID_PORT", at + ".cidr.cidr INVALID_CIDR",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := policy.Resolve(policy.Request{Spec: reaching(test.rule), Policy: &sandboxv1.Policy{}})
			reason, rules := refusalOf(t, err)
			if reason != apierr.InvalidRequest {
				t.Errorf("reason %q", reason)
			}
			if diff := cmp.Diff(test.want, rules); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGuardedNetworksAreReachedOnlyByRulesOfThePolicyInsideThem(t *testing.T) {
	guarded := netip.MustParsePrefix("169.254.0.0/16")
	around := rapid.Custom(func(t *rapid.T) netip.Prefix {
		low := rapid.Uint16().Draw(t, "low")
		address := netip.AddrFrom4([4]byte{169, 254, byte(low >> 8), byte(low)})
		return netip.PrefixFrom(address, rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		declared := around.Draw(t, "declared")
		constraints := &sandboxv1.NetworkConstraints{}
		entitled := false
		for _, list := range []struct {
			name  string
			rules *[]*sandboxv1.PolicyEgressRule
		}{{"allowed", &constraints.AllowedEgress}, {"default", &constraints.DefaultEgress}} {
			for _, prefix := range rapid.SliceOfN(around, 0, 3).Draw(t, list.name) {
				*list.rules = append(*list.rules, entitle(toCIDR(prefix.String())))
				inside := prefix.Bits() >= guarded.Bits()
				entitled = entitled || inside && prefix.Overlaps(declared) && prefix.Bits() <= declared.Bits()
			}
		}
		resolved, err := policy.Resolve(policy.Request{Spec: reaching(toCIDR(declared.String())), Policy: networking(constraints)})
		if err != nil {
			return
		}
		if declared.Bits() >= guarded.Bits() && !entitled {
			t.Fatalf("%s is granted by %v", declared, constraints)
		}
		if len(constraints.GetAllowedEgress())+len(constraints.GetDefaultEgress()) == 0 {
			t.Fatalf("%s is granted by nothing: %v", declared, resolved.Egress)
		}
	})
}

func TestARefusalNamesEveryGuardedNetwork(t *testing.T) {
	_, err := policy.Resolve(policy.Request{Spec: reaching(toCIDR("0.0.0.0/0", "127.0.0.0/8")), Policy: &sandboxv1.Policy{}})
	if err == nil || !strings.Contains(err.Error(), "169.254.0.0/16, 224.0.0.0/4, which") {
		t.Errorf("%v; want the two that are not taken out", err)
	}
}

func TestWhatASandboxMayDeclareOfTheDefault(t *testing.T) {
	everything := networking(&sandboxv1.NetworkConstraints{DefaultEgress: []*sandboxv1.PolicyEgressRule{entitle(toCIDR("0.0.0.0/0"))}})
	metadata := networking(&sandboxv1.NetworkConstraints{DefaultEgress: []*sandboxv1.PolicyEgressRule{entitle(toCIDR("169.254.169.254/32"))}})
	for name, test := range map[string]struct {
		policy   *sandboxv1.Policy
		declared *sandboxv1.EgressRule
		admitted bool
	}{
		"the default itself":                          {everything, toCIDR("0.0.0.0/0"), true},
		"what a wide default does not mean":           {everything, toCIDR("169.254.169.254/32"), false},
		"a link-local address that is the default":    {metadata, toCIDR("169.254.169.254/32"), true},
		"another one":                                 {metadata, toCIDR("169.254.169.253/32"), false},
		"a network that has no guarded addresses":     {metadata, toCIDR("10.0.0.0/8"), true},
		"a network that holds the one of the default": {metadata, toCIDR("169.254.169.252/30"), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Resolve(policy.Request{Spec: reaching(test.declared), Policy: test.policy})
			if (err == nil) != test.admitted {
				t.Errorf("%v; want admitted: %t", err, test.admitted)
			}
		})
	}
}

func TestWhatASandboxReachesThatDeclaresNothing(t *testing.T) {
	standard := networking(&sandboxv1.NetworkConstraints{
		AllowedEgress: []*sandboxv1.PolicyEgressRule{entitle(toAny())},
		DefaultEgress: []*sandboxv1.PolicyEgressRule{entitle(on(toAny(), port("TCP", 443, 0)))},
	})
	noDNS := networking(&sandboxv1.NetworkConstraints{DnsEgress: sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_DENY})
	with := func(options *sandboxv1.NetworkOptions) *sandboxv1.SandboxSpec {
		return sandbox(func(s *sandboxv1.SandboxSpec) { s.Network = options })
	}
	tests := []struct {
		name   string
		policy *sandboxv1.Policy
		spec   *sandboxv1.SandboxSpec
		egress []*sandboxv1.EgressRule
		dns    bool
	}{
		{"nothing under the empty policy, but DNS", &sandboxv1.Policy{}, sandbox(), nil, true},
		{"the policy's default", standard, sandbox(), []*sandboxv1.EgressRule{on(toAny(), port("TCP", 443, 0))}, true},
		{"the policy's default, where deny_egress is false", standard, with(&sandboxv1.NetworkOptions{DenyEgress: proto.Bool(false)}), []*sandboxv1.EgressRule{on(toAny(), port("TCP", 443, 0))}, true},
		{"its own rules in place of the default", standard, reaching(toHost("example.com")), []*sandboxv1.EgressRule{toHost("example.com")}, true},
		{"nothing where it denies itself egress, but DNS", standard, with(&sandboxv1.NetworkOptions{DenyEgress: proto.Bool(true)}), nil, true},
		{"not even DNS where the policy denies it", noDNS, sandbox(), nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resolved, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.egress, resolved.Egress, protocmp.Transform()); diff != "" || resolved.DNS != test.dns {
				t.Errorf("DNS %t, egress (-want +got):\n%s", resolved.DNS, diff)
			}
		})
	}
}

func TestRulesThatGoTogetherBadly(t *testing.T) {
	tests := []struct {
		name   string
		policy *sandboxv1.Policy
		spec   *sandboxv1.SandboxSpec
		reason apierr.Reason
		want   []string
	}{
		{"deny_egress beside rules", &sandboxv1.Policy{}, sandbox(func(s *sandboxv1.SandboxSpec) {
			s.Network = &sandboxv1.NetworkOptions{DenyEgress: proto.Bool(true), Egress: []*sandboxv1.EgressRule{toAny()}}
		}), apierr.InvalidRequest, []string{"spec.network.egress MUTUALLY_EXCLUSIVE"}},
		{
			"a name where the policy allows none", networking(&sandboxv1.NetworkConstraints{DenyHttpsHostnameRules: proto.Bool(true)}), reaching(toAny(), toHost("example.com")),
			apierr.PolicyViolation,
			[]string{"spec.network.egress[1].dns_name DENY_HTTPS_HOSTNAME_RULES"},
		},
		{
			"a name where the policy allows none, in the older spelling", networking(&sandboxv1.NetworkConstraints{DenyDns: proto.Bool(true)}), reaching(toHost("example.com")),
			apierr.PolicyViolation,
			[]string{"spec.network.egress[0].dns_name DENY_HTTPS_HOSTNAME_RULES"},
		},
		{
			"a name without DNS", networking(&sandboxv1.NetworkConstraints{DnsEgress: sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_DENY}), reaching(toHost("example.com")),
			apierr.PolicyViolation,
			[]string{"spec.network.egress[0].dns_name DNS_EGRESS"},
		},
		{
			"every rule that is outside is named", allowing(entitle(toCIDR("203.0.113.0/24"))), reaching(toAny(), toCIDR("203.0.113.0/24"), toHost("example.com")),
			apierr.PolicyViolation,
			[]string{"spec.network.egress[0] ALLOWED_EGRESS", "spec.network.egress[2] ALLOWED_EGRESS"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			reason, rules := refusalOf(t, err)
			if diff := cmp.Diff(test.want, rules); diff != "" || reason != test.reason {
				t.Errorf("%s (-want +got):\n%s", reason, diff)
			}
		})
	}
}

func TestIngress(t *testing.T) {
	fromCIDR := func(cidr string) *sandboxv1.IngressRule {
		return &sandboxv1.IngressRule{Source: &sandboxv1.IngressRule_Cidr{Cidr: &sandboxv1.CidrBlock{Cidr: cidr}}}
	}
	fromAny := func() *sandboxv1.IngressRule {
		return &sandboxv1.IngressRule{Source: &sandboxv1.IngressRule_Any{Any: true}}
	}
	fromTenant := func(scope sandboxv1.TenantScope) *sandboxv1.IngressRule {
		return &sandboxv1.IngressRule{Source: &sandboxv1.IngressRule_Tenant{Tenant: scope}}
	}
	lettingIn := func(deny bool, rules ...*sandboxv1.IngressRule) *sandboxv1.SandboxSpec {
		return sandbox(func(s *sandboxv1.SandboxSpec) {
			s.Network = &sandboxv1.NetworkOptions{Ingress: rules, DenyIngress: &deny}
		})
	}
	offices := networking(&sandboxv1.NetworkConstraints{
		AllowedIngress: []*sandboxv1.IngressRule{fromCIDR("203.0.113.0/24")},
		DefaultIngress: []*sandboxv1.IngressRule{fromCIDR("203.0.113.0/25")},
	})
	anyone := networking(&sandboxv1.NetworkConstraints{AllowedIngress: []*sandboxv1.IngressRule{fromAny()}})
	tests := []struct {
		name    string
		policy  *sandboxv1.Policy
		spec    *sandboxv1.SandboxSpec
		ingress []*sandboxv1.IngressRule
		refused []string
	}{
		{"the policy's default where nothing is declared", offices, sandbox(), []*sandboxv1.IngressRule{fromCIDR("203.0.113.0/25")}, nil},
		{"declared inside the envelope", offices, lettingIn(false, fromCIDR("203.0.113.128/25")), []*sandboxv1.IngressRule{fromCIDR("203.0.113.128/25")}, nil},
		{"declared outside the envelope", offices, lettingIn(false, fromAny()), nil, []string{"spec.network.ingress[0] ALLOWED_INGRESS"}},
		{"deny_ingress sets rules aside", offices, lettingIn(true, fromAny()), nil, nil},
		{"rules that are set aside still need a meaning", offices, lettingIn(true, fromCIDR("here")), nil, []string{"spec.network.ingress[0].cidr.cidr INVALID_CIDR"}},
		{"private sources are sources like any", anyone, lettingIn(false, fromCIDR("10.0.0.0/8")), []*sandboxv1.IngressRule{fromCIDR("10.0.0.0/8")}, nil},
		{"tenants are entitled by name", anyone, lettingIn(false, fromTenant(sandboxv1.TenantScope_TENANT_SCOPE_SAME_ORG)), nil, []string{"spec.network.ingress[0] ALLOWED_INGRESS"}},
		{"the sandbox network cannot be enforced", &sandboxv1.Policy{}, lettingIn(false, fromTenant(sandboxv1.TenantScope_TENANT_SCOPE_SANDBOX_NETWORK)), nil, []string{"spec.network.ingress[0].tenant INVALID_TENANT"}},
		{"no source", &sandboxv1.Policy{}, lettingIn(false, &sandboxv1.IngressRule{}), nil, []string{"spec.network.ingress[0] SOURCE_REQUIRED"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resolved, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			_, rules := refusalOf(t, err)
			if diff := cmp.Diff(test.refused, rules); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.ingress, resolved.Ingress, protocmp.Transform()); diff != "" {
				t.Errorf("ingress (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGrantsByNameAreSeen(t *testing.T) {
	for _, test := range []struct {
		rules []*sandboxv1.EgressRule
		want  bool
	}{{nil, false}, {[]*sandboxv1.EgressRule{toAny()}, false}, {[]*sandboxv1.EgressRule{toAny(), toHost("example.com")}, true}} {
		resolved, err := policy.Resolve(policy.Request{Spec: reaching(test.rules...), Policy: &sandboxv1.Policy{}})
		if err != nil {
			t.Fatal(err)
		}
		if resolved.NamesHosts() != test.want {
			t.Errorf("%v: %t", test.rules, resolved.NamesHosts())
		}
	}
}
