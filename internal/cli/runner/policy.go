package runner

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// describePolicy shows each rule, set or not: what is unset and what is empty
// differ.
func describePolicy(text *output.Text, runner *sandboxv1.ManagedRunner) {
	policy := runner.GetPolicy()
	if policy == nil {
		text.Section("Policy", func() {
			text.Line("none: no sandbox is placed on this runner until it has one")
		})
		return
	}
	constraints := policy.GetConstraints()
	text.Section("Policy", func() {
		text.Field("Display name", policy.GetDisplayName())
		text.Field("Revision (etag)", runner.GetEtag())
		text.Section("Resources, per container", func() {
			rules := constraints.GetResources()
			text.Field("CPU: default", rules.GetDefaultCpu())
			text.Field("CPU: least", rules.GetMinCpu())
			text.Field("CPU: most", rules.GetMaxCpu())
			text.Field("Memory: default", rules.GetDefaultMemory())
			text.Field("Memory: least", rules.GetMinMemory())
			text.Field("Memory: most", rules.GetMaxMemory())
			text.Field("GPUs: most", maxGPU(rules))
			text.Field("CPU of a whole sandbox: most", rules.GetCpuCeiling())
			text.Field("Memory of a whole sandbox: most", rules.GetMemoryCeiling())
			text.Field("Limits required", optionalBool(ruleOf(rules, func() *bool { return rules.RequireLimits })))
		})
		text.Section("Lifetime", func() {
			lifecycle := constraints.GetLifecycle()
			fallback := ""
			if lifecycle != nil && lifecycle.DefaultLifetimeSeconds != nil {
				fallback = seconds(lifecycle.GetDefaultLifetimeSeconds())
				if lifecycle.GetDefaultLifetimeSeconds() == 0 {
					fallback = "0 (the platform's default)"
				}
			}
			text.Field("Default", fallback)
		})
		text.Section("Images", func() {
			text.List("Allowed registries", constraints.GetImage().GetAllowedRegistries())
			text.List("Allowed images", constraints.GetImage().GetAllowedImages())
		})
		describeNetwork(text, constraints.GetNetwork())
		text.Section("Security", func() {
			rules := constraints.GetSecurity()
			text.Field("Privileged", optionalBool(ruleOf(rules, func() *bool { return rules.AllowPrivileged })))
			text.List("Capabilities that may be added", rules.GetAllowedCapabilities())
			text.List("Seccomp profiles", rules.GetAllowedSeccompProfiles())
			text.List("Runtime classes", rules.GetAllowedRuntimeClasses())
		})
		text.Section("Metadata and volumes", func() {
			metadata, volumes := constraints.GetMetadata(), constraints.GetVolumes()
			text.List("Annotation prefixes refused", metadata.GetDeniedAnnotationPrefixes())
			count := ""
			if metadata != nil && metadata.MaxAnnotationCount != nil {
				count = strconv.FormatInt(metadata.GetMaxAnnotationCount(), 10)
			}
			text.Field("Annotations: most", count)
			var media []string
			for _, medium := range volumes.GetAllowedMedia() {
				media = append(media, output.Word(medium, "STORAGE_MEDIUM_"))
			}
			text.List("Volume media", media)
			text.Field("Volume size: most", volumes.GetMaxSize())
		})
		text.Section("Who may reach sandboxes", func() {
			allowlist := policy.GetControlPlaneAccess().GetSourceIpAllowlist()
			if allowlist != nil && len(allowlist.GetCidrs()) == 0 {
				text.Field("Source addresses", "(empty list: no public address)")
				return
			}
			text.List("Source addresses", allowlist.GetCidrs())
		})
		if base := policy.GetBase(); base != nil {
			text.Message("Base", base)
		}
	})
}

func describeNetwork(text *output.Text, rules *sandboxv1.NetworkConstraints) {
	text.Section("Network", func() {
		text.List("Egress allowed", egressRules(rules.GetAllowedEgress()))
		text.List("Egress by default", egressRules(rules.GetDefaultEgress()))
		text.List("Ingress allowed", ingressRules(rules.GetAllowedIngress()))
		text.List("Ingress by default", ingressRules(rules.GetDefaultIngress()))
		text.Field("Host name rules denied", optionalBool(ruleOf(rules, func() *bool { return rules.DenyHttpsHostnameRules })))
		text.Field("DNS", output.Word(rules.GetDnsEgress(), "DNS_EGRESS_MODE_"))
	})
}

// ruleOf reads an optional rule of a group that may be absent itself.
func ruleOf[G any](group *G, rule func() *bool) *bool {
	if group == nil {
		return nil
	}
	return rule()
}

func maxGPU(rules *sandboxv1.ResourceConstraints) string {
	switch {
	case rules == nil || rules.MaxGpuCount == nil:
		return ""
	case rules.GetMaxGpuCount() == 0:
		return "0 (no GPU at all)"
	}
	return strconv.FormatInt(rules.GetMaxGpuCount(), 10)
}

func egressRules(rules []*sandboxv1.PolicyEgressRule) []string {
	var lines []string
	for _, rule := range rules {
		var line string
		switch to := rule.GetDestination().(type) {
		case *sandboxv1.PolicyEgressRule_Cidr:
			line = block(to.Cidr)
		case *sandboxv1.PolicyEgressRule_HttpsHostname:
			line = "https " + to.HttpsHostname
		case *sandboxv1.PolicyEgressRule_DnsName:
			line = "https " + to.DnsName
		case *sandboxv1.PolicyEgressRule_Tenant:
			line = tenant(to.Tenant)
		case *sandboxv1.PolicyEgressRule_Any:
			line = "any"
		case *sandboxv1.PolicyEgressRule_Selector:
			line = fmt.Sprintf("pods %v in namespaces %v", to.Selector.GetPodLabels(), to.Selector.GetNamespaceLabels())
		}
		if except := rule.GetHttpsHostnameExcept(); len(except) > 0 {
			line += " except " + strings.Join(except, ", ")
		}
		lines = append(lines, line+ports(rule.GetPorts()))
	}
	return lines
}

func ingressRules(rules []*sandboxv1.IngressRule) []string {
	var lines []string
	for _, rule := range rules {
		var line string
		switch from := rule.GetSource().(type) {
		case *sandboxv1.IngressRule_Cidr:
			line = block(from.Cidr)
		case *sandboxv1.IngressRule_Tenant:
			line = tenant(from.Tenant)
		case *sandboxv1.IngressRule_Any:
			line = "any"
		}
		lines = append(lines, line+ports(rule.GetPorts()))
	}
	return lines
}

func block(cidr *sandboxv1.CidrBlock) string {
	if len(cidr.GetExcept()) == 0 {
		return cidr.GetCidr()
	}
	return cidr.GetCidr() + " except " + strings.Join(cidr.GetExcept(), ", ")
}

func tenant(scope sandboxv1.TenantScope) string {
	return "sandboxes of " + strings.ToLower(output.Word(scope, "TENANT_SCOPE_"))
}

func ports(ranges []*sandboxv1.PortRange) string {
	var parts []string
	for _, ports := range ranges {
		protocol := ports.GetProtocol()
		if protocol == "" {
			protocol = "TCP"
		}
		part := fmt.Sprintf("%s %d", protocol, ports.GetPort())
		if ports.GetEndPort() > ports.GetPort() {
			part += fmt.Sprintf("-%d", ports.GetEndPort())
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}

func number(n int32) string { return strconv.FormatInt(int64(n), 10) }

func seconds(n int64) string { return (time.Duration(n) * time.Second).String() }

func yesNo(value bool) string {
	if value {
		return "yes"
	}
	return "no"
}

func optionalBool(value *bool) string {
	if value == nil {
		return ""
	}
	return yesNo(*value)
}

func moment(call *invocation.Invocation, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return output.Time(at) + " (" + output.Age(at, call.Now()) + " ago)"
}
