package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// peer is what a rule's destination or source is.
type peer int

const (
	toNetwork peer = iota + 1
	toHost
	toTenant
	toAny
	toSelector
)

// grant is a network rule, parsed: one that a sandbox declares, or one that a
// policy entitles to.
type grant struct {
	peer peer
	// addresses are those of a network; for an entitlement to "any", those that
	// a declared network may have.
	addresses addressSet
	// touches are the guarded networks that an egress rule has addresses of, as
	// it was written.
	touches []netip.Prefix
	host    hostname
	// hostExcept are names that an entitlement does not cover.
	hostExcept                 []hostname
	tenant                     sandboxv1.TenantScope
	podLabels, namespaceLabels map[string]string
	ports                      portSet
}

// covers says whether the whole of a declared rule lies inside the
// entitlement g (docs/adr/0005).
func (g *grant) covers(d *grant) bool {
	if !g.ports.contains(d.ports) {
		return false
	}
	switch d.peer {
	case toNetwork:
		return (g.peer == toNetwork || g.peer == toAny) && g.addresses.contains(d.addresses)
	case toAny:
		return g.peer == toAny
	case toHost:
		named := g.peer == toAny || g.peer == toHost && g.host.covers(d.host)
		return named && !slices.ContainsFunc(g.hostExcept, d.host.overlaps)
	case toTenant:
		sameOrg := g.tenant == sandboxv1.TenantScope_TENANT_SCOPE_SAME_ORG && d.tenant == sandboxv1.TenantScope_TENANT_SCOPE_SAME_USER
		return g.peer == toTenant && (g.tenant == d.tenant || sameOrg)
	case toSelector:
		return g.peer == toSelector &&
			includes(d.podLabels, g.podLabels) &&
			(len(d.namespaceLabels) == 0) == (len(g.namespaceLabels) == 0) &&
			includes(d.namespaceLabels, g.namespaceLabels)
	}
	return false
}

// includes says whether every label of part is in whole.
func includes(whole, part map[string]string) bool {
	for key, want := range part {
		if got, ok := whole[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// parseEgress reads a rule that a sandbox declares.
func parseEgress(rule *sandboxv1.EgressRule) (grant, []problem) {
	ports, problems := parsePorts(rule.GetPorts())
	g := grant{ports: ports}
	switch to := rule.GetDestination().(type) {
	case *sandboxv1.EgressRule_Cidr:
		problems = g.guardedNetwork(to.Cidr, problems)
	case *sandboxv1.EgressRule_DnsName:
		problems = g.named("dns_name", to.DnsName, false, problems)
	case *sandboxv1.EgressRule_Tenant:
		problems = g.sandboxes(to.Tenant, problems)
	case *sandboxv1.EgressRule_Any:
		problems = g.any(to.Any, problems)
	case *sandboxv1.EgressRule_Selector:
		problems = g.selected(to.Selector, problems)
	default:
		problems = append(problems, problem{"", "DESTINATION_REQUIRED", "has no destination; give one of cidr, dns_name, tenant, any and selector"})
	}
	return g, problems
}

// parsePolicyEgress reads a rule of a policy's allowed_egress (envelope) or
// default_egress.
func parsePolicyEgress(rule *sandboxv1.PolicyEgressRule, envelope bool) (grant, []problem) {
	ports, problems := parsePorts(rule.GetPorts())
	g := grant{ports: ports}
	switch to := rule.GetDestination().(type) {
	case *sandboxv1.PolicyEgressRule_Cidr:
		problems = g.guardedNetwork(to.Cidr, problems)
	case *sandboxv1.PolicyEgressRule_HttpsHostname:
		problems = g.named("https_hostname", to.HttpsHostname, envelope, problems)
	case *sandboxv1.PolicyEgressRule_DnsName:
		problems = g.named("dns_name", to.DnsName, envelope, problems)
	case *sandboxv1.PolicyEgressRule_Tenant:
		problems = g.sandboxes(to.Tenant, problems)
	case *sandboxv1.PolicyEgressRule_Any:
		problems = g.any(to.Any, problems)
	case *sandboxv1.PolicyEgressRule_Selector:
		problems = g.selected(to.Selector, problems)
	default:
		problems = append(problems, problem{"", "DESTINATION_REQUIRED", "has no destination; give one of cidr, https_hostname, tenant, any and selector"})
	}
	if len(rule.GetHttpsHostnameExcept()) > 0 && len(rule.GetDnsNameExcept()) > 0 {
		problems = append(problems, problem{"dns_name_except", "MUTUALLY_EXCLUSIVE", "is the older name of https_hostname_except; set one of the two"})
	}
	for _, names := range []struct {
		field string
		names []string
	}{{"https_hostname_except", rule.GetHttpsHostnameExcept()}, {"dns_name_except", rule.GetDnsNameExcept()}} {
		for i, name := range names.names {
			text := hostnameProblem(name, false)
			switch {
			case !envelope:
				text = "is possible only in allowed_egress"
			case g.peer != toHost && g.peer != toAny:
				text = "needs a rule whose destination is https_hostname or any"
			}
			if text != "" {
				problems = append(problems, problem{element(names.field, i), "INVALID_HOSTNAME", quote(name) + " " + text})
				continue
			}
			g.hostExcept = append(g.hostExcept, newHostname(name))
		}
	}
	return g, problems
}

// parseIngress reads a rule of a sandbox or of a policy.
func parseIngress(rule *sandboxv1.IngressRule) (grant, []problem) {
	ports, problems := parsePorts(rule.GetPorts())
	g := grant{ports: ports}
	switch from := rule.GetSource().(type) {
	case *sandboxv1.IngressRule_Cidr:
		problems = g.network(from.Cidr, problems)
	case *sandboxv1.IngressRule_Tenant:
		problems = g.sandboxes(from.Tenant, problems)
		if from.Tenant == sandboxv1.TenantScope_TENANT_SCOPE_SANDBOX_NETWORK {
			problems = append(problems, problem{"tenant", "INVALID_TENANT", "TENANT_SCOPE_SANDBOX_NETWORK cannot be enforced for ingress yet; use SAME_USER or SAME_ORG"})
		}
	case *sandboxv1.IngressRule_Any:
		problems = g.any(from.Any, problems)
	default:
		problems = append(problems, problem{"", "SOURCE_REQUIRED", "has no source; give one of cidr, tenant and any"})
	}
	return g, problems
}

func (g *grant) network(block *sandboxv1.CidrBlock, problems []problem) []problem {
	g.peer = toNetwork
	addresses, found := parseBlock(block)
	for _, p := range found {
		problems = append(problems, problem{"cidr." + p.field, p.rule, p.text})
	}
	g.addresses = addresses
	return problems
}

// guardedNetwork is network for egress.
func (g *grant) guardedNetwork(block *sandboxv1.CidrBlock, problems []problem) []problem {
	before := len(problems)
	problems = g.network(block, problems)
	if len(problems) == before {
		g.guard(block)
	}
	return problems
}

func (g *grant) named(field, name string, everything bool, problems []problem) []problem {
	g.peer = toHost
	if text := hostnameProblem(name, everything); text != "" {
		return append(problems, problem{field, "INVALID_HOSTNAME", quote(name) + " " + text})
	}
	if problems == nil && !g.ports.onlyHTTPS() {
		return []problem{{"ports", "INVALID_PORT", "a host name grants HTTPS alone: leave ports out, or give exactly TCP 443"}}
	}
	g.host, g.ports = newHostname(name), https()
	return problems
}

func (g *grant) sandboxes(scope sandboxv1.TenantScope, problems []problem) []problem {
	g.peer, g.tenant = toTenant, scope
	if scope < sandboxv1.TenantScope_TENANT_SCOPE_SAME_USER || scope > sandboxv1.TenantScope_TENANT_SCOPE_SANDBOX_NETWORK {
		return append(problems, problem{"tenant", "INVALID_TENANT", fmt.Sprintf("%s is not a tenant scope; use SAME_USER, SAME_ORG or SANDBOX_NETWORK", scope)})
	}
	return problems
}

func (g *grant) any(given bool, problems []problem) []problem {
	g.peer = toAny
	if !given {
		return append(problems, problem{"any", "INVALID_ANY", "must be true, or left out"})
	}
	return problems
}

func (g *grant) selected(block *sandboxv1.SelectorBlock, problems []problem) []problem {
	g.peer = toSelector
	g.podLabels, g.namespaceLabels = block.GetPodLabels(), block.GetNamespaceLabels()
	if len(g.podLabels) == 0 {
		problems = append(problems, problem{"selector.pod_labels", "REQUIRED", "needs at least one label"})
	}
	for _, labels := range []struct {
		field  string
		labels map[string]string
	}{{"selector.pod_labels", g.podLabels}, {"selector.namespace_labels", g.namespaceLabels}} {
		problems = append(problems, labelProblems(labels.field, labels.labels)...)
	}
	return problems
}

// labelProblems checks the keys and values of Kubernetes labels.
func labelProblems(field string, labels map[string]string) []problem {
	var problems []problem
	for key, value := range labels {
		for _, text := range validation.IsQualifiedName(key) {
			problems = append(problems, problem{field, "INVALID_LABEL", quote(key) + " is not a label's key: " + text})
		}
		for _, text := range validation.IsValidLabelValue(value) {
			problems = append(problems, problem{field + "[" + quote(key) + "]", "INVALID_LABEL", quote(value) + " is not a label's value: " + text})
		}
	}
	slices.SortFunc(problems, func(a, b problem) int {
		return strings.Compare(a.field+a.text, b.field+b.text)
	})
	return problems
}

// describeNetwork, and the functions below, write a rule for people.
func describeNetwork(block *sandboxv1.CidrBlock) string {
	text := block.GetCidr()
	if len(block.GetExcept()) > 0 {
		text += " except " + list(block.GetExcept())
	}
	return text
}

func describeSelector(block *sandboxv1.SelectorBlock) string {
	text := "pods with " + describeLabels(block.GetPodLabels())
	if len(block.GetNamespaceLabels()) > 0 {
		text += " in namespaces with " + describeLabels(block.GetNamespaceLabels())
	}
	return text
}

func describeLabels(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, key+"="+labels[key])
	}
	return list(pairs)
}

func describePorts(ports []*sandboxv1.PortRange) string {
	if len(ports) == 0 {
		return " on every port"
	}
	var texts []string
	for _, p := range ports {
		over, _ := parseProtocol(p.GetProtocol())
		text := fmt.Sprintf("%s %d", over, p.GetPort())
		if p.GetEndPort() > p.GetPort() {
			text += fmt.Sprintf("–%d", p.GetEndPort())
		}
		texts = append(texts, text)
	}
	return " on " + list(texts)
}

func describeEgress(rule *sandboxv1.EgressRule) string {
	ports := describePorts(rule.GetPorts())
	switch to := rule.GetDestination().(type) {
	case *sandboxv1.EgressRule_Cidr:
		return describeNetwork(to.Cidr) + ports
	case *sandboxv1.EgressRule_DnsName:
		return "https://" + to.DnsName
	case *sandboxv1.EgressRule_Tenant:
		return to.Tenant.String() + ports
	case *sandboxv1.EgressRule_Any:
		return "any" + ports
	case *sandboxv1.EgressRule_Selector:
		return describeSelector(to.Selector) + ports
	}
	return "nothing"
}

func describePolicyEgress(rule *sandboxv1.PolicyEgressRule) string {
	text := describeEgress(declare(rule))
	except := rule.GetHttpsHostnameExcept()
	if len(except) == 0 {
		except = rule.GetDnsNameExcept()
	}
	if len(except) > 0 {
		text += " but not https://" + strings.Join(except, ", https://")
	}
	return text
}

func describeIngress(rule *sandboxv1.IngressRule) string {
	ports := describePorts(rule.GetPorts())
	switch from := rule.GetSource().(type) {
	case *sandboxv1.IngressRule_Cidr:
		return describeNetwork(from.Cidr) + ports
	case *sandboxv1.IngressRule_Tenant:
		return from.Tenant.String() + ports
	case *sandboxv1.IngressRule_Any:
		return "any" + ports
	}
	return "nothing"
}

// declare is a policy's rule the way a sandbox would declare it.
func declare(rule *sandboxv1.PolicyEgressRule) *sandboxv1.EgressRule {
	out := &sandboxv1.EgressRule{Ports: rule.GetPorts()}
	switch to := rule.GetDestination().(type) {
	case *sandboxv1.PolicyEgressRule_Cidr:
		out.Destination = &sandboxv1.EgressRule_Cidr{Cidr: to.Cidr}
	case *sandboxv1.PolicyEgressRule_HttpsHostname:
		out.Destination = &sandboxv1.EgressRule_DnsName{DnsName: to.HttpsHostname}
	case *sandboxv1.PolicyEgressRule_DnsName:
		out.Destination = &sandboxv1.EgressRule_DnsName{DnsName: to.DnsName}
	case *sandboxv1.PolicyEgressRule_Tenant:
		out.Destination = &sandboxv1.EgressRule_Tenant{Tenant: to.Tenant}
	case *sandboxv1.PolicyEgressRule_Any:
		out.Destination = &sandboxv1.EgressRule_Any{Any: to.Any}
	case *sandboxv1.PolicyEgressRule_Selector:
		out.Destination = &sandboxv1.EgressRule_Selector{Selector: to.Selector}
	}
	return out
}
