package policy

import (
	"fmt"
	"net/netip"
	"slices"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// networkRules are policy.constraints.network, parsed.
type networkRules struct {
	egress, ingress envelope
	// defaults are what a sandbox gets that declares nothing; Validate has held
	// them against the envelopes.
	defaultEgress  []*sandboxv1.EgressRule
	defaultGrants  []grant
	defaultIngress []*sandboxv1.IngressRule
	denyHostnames  bool
	denyDNS        bool
}

// envelope is a list of entitlements; an empty one restricts nothing.
type envelope struct {
	grants []grant
	// texts describe the grants.
	texts []string
}

func (e *envelope) covers(declared *grant) bool {
	for i := range e.grants {
		if e.grants[i].covers(declared) {
			return true
		}
	}
	return len(e.grants) == 0
}

// entitlesAny says whether one of the entitlements is "any".
func (e *envelope) entitlesAny() bool {
	return slices.ContainsFunc(e.grants, func(g grant) bool { return g.peer == toAny })
}

// network resolves and checks what the sandbox may reach and who may reach it.
func (r *resolver) network(spec *sandboxv1.NetworkOptions, out *Resolved) {
	rules := &r.policy.network
	out.DNS = !rules.denyDNS

	declared := spec.GetEgress()
	switch {
	case spec.GetDenyEgress():
		if len(declared) > 0 {
			r.refused.add(invalid, "spec.network.egress", "MUTUALLY_EXCLUSIVE", "must be empty when deny_egress is true; keep one of the two")
		}
	case len(declared) == 0:
		out.Egress, out.defaultEgress = rules.defaultEgress, true
	default:
		out.Egress = declared
	}
	for i, rule := range declared {
		r.egress(i, rule)
	}

	for i, rule := range spec.GetIngress() {
		r.ingress(i, rule, spec.GetDenyIngress())
	}
	switch {
	case spec.GetDenyIngress():
	case len(spec.GetIngress()) == 0:
		out.Ingress = rules.defaultIngress
	default:
		out.Ingress = spec.GetIngress()
	}
}

func (r *resolver) egress(index int, rule *sandboxv1.EgressRule) {
	const list = "spec.network.egress"
	declared, problems := parseEgress(rule)
	if problems != nil {
		r.refused.addProblems(element(list, index), problems)
		return
	}
	rules := &r.policy.network
	if declared.peer == toHost {
		if rules.denyHostnames {
			r.refused.add(outsidePolicy, element(list, index)+".dns_name", "DENY_HTTPS_HOSTNAME_RULES",
				"%q: the policy allows no rules by host name (policy.constraints.network.deny_https_hostname_rules); use cidr", rule.GetDnsName())
		}
		if rules.denyDNS {
			r.refused.add(outsidePolicy, element(list, index)+".dns_name", "DNS_EGRESS",
				"%q: a host cannot be reached by name, as the policy denies DNS (policy.constraints.network.dns_egress); use cidr", rule.GetDnsName())
		}
	}
	if rules.egress.covers(&declared) {
		r.guarded(element(list, index), rule, &declared)
		return
	}
	hint := ""
	switch {
	case declared.touches != nil:
		hint = fmt.Sprintf("; a wider rule does not mean %s, so the policy must list a network inside it", listPrefixes(declared.touches))
	case declared.peer == toNetwork && rules.egress.entitlesAny():
		hint = `; "any" leaves out private, link-local and other networks that are not the internet, so declare any, or take those out with except`
	}
	r.refused.add(outsidePolicy, element(list, index), "ALLOWED_EGRESS",
		"%s is not wholly inside one rule of the policy's envelope: %s (policy.constraints.network.allowed_egress)%s",
		describeEgress(rule), alternatives(rules.egress.texts), hint)
}

// guarded refuses what an empty envelope does not restrict: guarded networks
// must be listed.
func (r *resolver) guarded(field string, rule *sandboxv1.EgressRule, declared *grant) {
	rules := &r.policy.network
	listed := len(rules.egress.grants) > 0 ||
		slices.ContainsFunc(rules.defaultGrants, func(g grant) bool { return g.covers(declared) })
	if declared.touches != nil && !listed {
		r.refused.add(outsidePolicy, field, "ALLOWED_EGRESS",
			"%s has addresses of %s, which no sandbox reaches unless the policy lists them (policy.constraints.network.allowed_egress); declare any, or take them out with except",
			describeEgress(rule), listPrefixes(declared.touches))
	}
}

// ingress checks one declared rule; one that deny_ingress sets aside needs only
// to have a meaning.
func (r *resolver) ingress(index int, rule *sandboxv1.IngressRule, setAside bool) {
	const list = "spec.network.ingress"
	declared, problems := parseIngress(rule)
	if problems != nil {
		r.refused.addProblems(element(list, index), problems)
		return
	}
	if allowed := &r.policy.network.ingress; !setAside && !allowed.covers(&declared) {
		r.refused.add(outsidePolicy, element(list, index), "ALLOWED_INGRESS",
			"%s is not wholly inside one rule of the policy's envelope: %s (policy.constraints.network.allowed_ingress)",
			describeIngress(rule), alternatives(allowed.texts))
	}
}

// compileNetwork reads the rules; those with problems were refused by Validate.
func compileNetwork(constraints *sandboxv1.NetworkConstraints) networkRules {
	rules := networkRules{
		denyHostnames:  constraints.GetDenyHttpsHostnameRules() || constraints.GetDenyDns(),
		denyDNS:        constraints.GetDnsEgress() == sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_DENY,
		defaultIngress: constraints.GetDefaultIngress(),
	}
	for _, rule := range constraints.GetAllowedEgress() {
		g, _ := parsePolicyEgress(rule, true)
		if g.peer == toAny {
			g.addresses = external()
		}
		rules.egress.grants = append(rules.egress.grants, g)
		rules.egress.texts = append(rules.egress.texts, describePolicyEgress(rule))
	}
	for _, rule := range constraints.GetDefaultEgress() {
		g, _ := parsePolicyEgress(rule, false)
		rules.defaultGrants = append(rules.defaultGrants, g)
		rules.defaultEgress = append(rules.defaultEgress, declare(rule))
	}
	for _, rule := range constraints.GetAllowedIngress() {
		g, _ := parseIngress(rule)
		if g.peer == toAny {
			g.addresses = everywhere()
		}
		rules.ingress.grants = append(rules.ingress.grants, g)
		rules.ingress.texts = append(rules.ingress.texts, describeIngress(rule))
	}
	return rules
}

// everywhere is every address.
func everywhere() addressSet {
	return addressSet{
		rangeOf(netip.MustParsePrefix("0.0.0.0/0")),
		rangeOf(netip.MustParsePrefix("::/0")),
	}
}
