package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Bounds on a policy's own size.
const (
	maxDisplayName = 256
	maxSources     = 256
)

// Validate says what is wrong with a policy as it is written: rules without a
// meaning, and rules that contradict each other, so that no sandbox could meet
// both. Field paths begin with "policy.". Both old and new field names are
// understood; nil and the empty policy are sound.
func Validate(p *sandboxv1.Policy) []apierr.Violation {
	var v refusal
	if n := len([]rune(p.GetDisplayName())); n > maxDisplayName {
		v.add(invalid, "policy.display_name", "TOO_LONG", "%d characters are more than 256", n)
	}
	v.addProblems("policy.base", baseProblems(p.GetBase()))
	constraints := p.GetConstraints()
	v.resources(constraints.GetResources())
	v.image(constraints.GetImage())
	v.network(constraints.GetNetwork())
	v.security(constraints.GetSecurity())
	v.names("policy.constraints.instance.allowed_instance_types", constraints.GetInstance().GetAllowedInstanceTypes())
	if seconds := constraints.GetLifecycle().GetDefaultLifetimeSeconds(); seconds < 0 || seconds > MaxLifetimeSeconds {
		v.add(invalid, "policy.constraints.lifecycle.default_lifetime_seconds", "OUT_OF_RANGE",
			"%d must be 0 (the platform's default) to %d (30 days)", seconds, MaxLifetimeSeconds)
	}
	v.metadata(constraints.GetMetadata(), baseAnnotations(p.GetBase()))
	v.volumes(constraints.GetVolumes())
	v.sources(p.GetControlPlaneAccess().GetSourceIpAllowlist().GetCidrs())
	return v.violations
}

func (v *refusal) resources(c *sandboxv1.ResourceConstraints) {
	const at = "policy.constraints.resources."
	for _, u := range []unit{cpu, memory} {
		texts := map[string]string{}
		amounts := map[string]int64{}
		if u == cpu {
			texts["max_cpu"], texts["min_cpu"], texts["default_cpu"], texts["cpu_ceiling"] = c.GetMaxCpu(), c.GetMinCpu(), c.GetDefaultCpu(), c.GetCpuCeiling()
		} else {
			texts["max_memory"], texts["min_memory"], texts["default_memory"], texts["memory_ceiling"] = c.GetMaxMemory(), c.GetMinMemory(), c.GetDefaultMemory(), c.GetMemoryCeiling()
		}
		for _, field := range slices.Sorted(maps.Keys(texts)) {
			if texts[field] == "" {
				continue
			}
			amount, problem := u.parse(texts[field])
			if problem != "" {
				v.add(invalid, at+field, "INVALID_QUANTITY", "%q %s", texts[field], problem)
				continue
			}
			amounts[field] = amount
		}
		for _, order := range [][2]string{
			{"min_" + u.String(), "max_" + u.String()},
			{"min_" + u.String(), "default_" + u.String()},
			{"default_" + u.String(), "max_" + u.String()},
			{"min_" + u.String(), u.String() + "_ceiling"},
			{"default_" + u.String(), u.String() + "_ceiling"},
		} {
			low, lowSet := amounts[order[0]]
			high, highSet := amounts[order[1]]
			if lowSet && highSet && low > high {
				v.add(invalid, at+order[0], "CONTRADICTION", "%q must not be more than %s, which is %q", texts[order[0]], order[1], texts[order[1]])
			}
		}
	}
	if c.GetMaxGpuCount() < 0 {
		v.add(invalid, at+"max_gpu_count", "OUT_OF_RANGE", "%d must not be negative; 0 allows no GPU, and leaving it out any number", c.GetMaxGpuCount())
	}
}

func (v *refusal) image(c *sandboxv1.ImageConstraints) {
	for i, registry := range c.GetAllowedRegistries() {
		if problem := registryProblem(registry); problem != "" {
			v.add(invalid, element("policy.constraints.image.allowed_registries", i), "INVALID_REGISTRY", "%q %s", registry, problem)
		}
	}
	for i, image := range c.GetAllowedImages() {
		if _, _, problem := canonicalImage(image); problem != "" {
			v.add(invalid, element("policy.constraints.image.allowed_images", i), "INVALID_IMAGE", "%q %s", image, problem)
		}
	}
}

func (v *refusal) network(c *sandboxv1.NetworkConstraints) {
	const at = "policy.constraints.network."
	if c != nil && c.DenyDns != nil && c.DenyHttpsHostnameRules != nil {
		v.add(invalid, at+"deny_dns", "MUTUALLY_EXCLUSIVE", "is the older name of deny_https_hostname_rules; set one of the two")
	}
	switch c.GetDnsEgress() {
	case sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_UNSPECIFIED, sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_ALLOW, sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_DENY:
	default:
		v.add(invalid, at+"dns_egress", "INVALID_MODE", "%s is not a mode; use DNS_EGRESS_MODE_ALLOW or DNS_EGRESS_MODE_DENY", c.GetDnsEgress())
	}

	before := len(v.violations)
	for i, rule := range c.GetAllowedEgress() {
		_, problems := parsePolicyEgress(rule, true)
		v.addProblems(element(at+"allowed_egress", i), problems)
	}
	for i, rule := range c.GetAllowedIngress() {
		_, problems := parseIngress(rule)
		v.addProblems(element(at+"allowed_ingress", i), problems)
	}
	sound := len(v.violations) == before
	rules := compileNetwork(c)
	for i, rule := range c.GetDefaultEgress() {
		field := element(at+"default_egress", i)
		declared, problems := parsePolicyEgress(rule, false)
		v.addProblems(field, problems)
		switch {
		case problems != nil:
		case declared.peer == toHost:
			v.add(invalid, field, "HOSTNAME_IN_DEFAULT", "must not be a host name; put names into a sandbox template")
		case sound && !rules.egress.covers(&declared):
			v.add(invalid, field, "CONTRADICTION", "%s is not wholly inside one rule of allowed_egress: %s", describePolicyEgress(rule), alternatives(rules.egress.texts))
		}
	}
	for i, rule := range c.GetDefaultIngress() {
		field := element(at+"default_ingress", i)
		declared, problems := parseIngress(rule)
		v.addProblems(field, problems)
		if problems == nil && sound && !rules.ingress.covers(&declared) {
			v.add(invalid, field, "CONTRADICTION", "%s is not wholly inside one rule of allowed_ingress: %s", describeIngress(rule), alternatives(rules.ingress.texts))
		}
	}
}

func (v *refusal) security(c *sandboxv1.SecurityConstraints) {
	const at = "policy.constraints.security."
	for i, name := range c.GetAllowedCapabilities() {
		if _, ok := canonicalCapability(name); !ok {
			v.add(invalid, element(at+"allowed_capabilities", i), "INVALID_CAPABILITY", "%q is not a capability; write one such as \"NET_ADMIN\", or \"ALL\"", name)
		}
	}
	for i, profile := range c.GetAllowedSeccompProfiles() {
		if !isSeccompProfile(profile) {
			v.add(invalid, element(at+"allowed_seccomp_profiles", i), "INVALID_SECCOMP_PROFILE",
				`%q is not a profile; write "RuntimeDefault", "Unconfined" or "Localhost/PATH"`, profile)
		}
	}
	classes := c.GetAllowedRuntimeClasses()
	for i, class := range classes {
		v.runtimeClassName(element(at+"allowed_runtime_classes", i), class)
	}
	for _, standard := range []struct{ field, class string }{
		{"default_cpu_runtime_class", c.GetDefaultCpuRuntimeClass()},
		{"default_gpu_runtime_class", c.GetDefaultGpuRuntimeClass()},
	} {
		if standard.class == "" {
			continue
		}
		v.runtimeClassName(at+standard.field, standard.class)
		if len(classes) > 0 && !slices.Contains(classes, standard.class) {
			v.add(invalid, at+standard.field, "CONTRADICTION", "%q is not among allowed_runtime_classes; add it there", standard.class)
		}
	}
	v.runtimeClassMappings(c)
}

func (v *refusal) runtimeClassMappings(c *sandboxv1.SecurityConstraints) {
	const at = "policy.constraints.security.runtime_class_mappings"
	mappings := c.GetRuntimeClassMappings()
	if len(mappings) == 0 {
		return
	}
	if len(c.GetAllowedRuntimeClasses()) > 0 || c.GetDefaultCpuRuntimeClass() != "" || c.GetDefaultGpuRuntimeClass() != "" {
		v.add(invalid, at, "MUTUALLY_EXCLUSIVE", "cannot be combined with allowed_runtime_classes, default_cpu_runtime_class or default_gpu_runtime_class; keep one way or the other")
	}
	seen := map[sandboxv1.RuntimeClass]bool{}
	for i, mapping := range mappings {
		field, class := element(at, i), mapping.GetRuntimeClass()
		if _, ok := sandboxv1.RuntimeClass_name[int32(class)]; !ok || class == sandboxv1.RuntimeClass_RUNTIME_CLASS_UNSPECIFIED {
			v.add(invalid, field+".runtime_class", "INVALID_RUNTIME_CLASS", "%s is not a runtime class that can be mapped", class)
		} else if seen[class] {
			v.add(invalid, field+".runtime_class", "DUPLICATE", "%s is mapped already; map each class once", class)
		}
		seen[class] = true
		switch target := mapping.GetTarget().(type) {
		case *sandboxv1.RuntimeClassMapping_KubernetesRuntimeClassName:
			v.runtimeClassName(field+".kubernetes_runtime_class_name", target.KubernetesRuntimeClassName)
		case *sandboxv1.RuntimeClassMapping_NodeDefault:
			if !target.NodeDefault {
				v.add(invalid, field+".node_default", "INVALID_TARGET", "must be true, or left out")
			}
			if class == sandboxv1.RuntimeClass_RUNTIME_CLASS_CPU_NESTED_VIRT {
				v.add(invalid, field+".node_default", "INVALID_TARGET", "cannot serve %s, which is a feature that the node's default may lack; name a RuntimeClass", class)
			}
		default:
			v.add(invalid, field, "TARGET_REQUIRED", "has no target; give kubernetes_runtime_class_name or node_default")
		}
	}
}

func (v *refusal) runtimeClassName(field, name string) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		v.add(invalid, field, "INVALID_RUNTIME_CLASS", "%q is not the name of a RuntimeClass; write lower-case letters, digits, - and .", name)
	}
}

func (v *refusal) metadata(c *sandboxv1.MetadataConstraints, base map[string]string) {
	const at = "policy.constraints.metadata."
	for i, prefix := range c.GetDeniedAnnotationPrefixes() {
		if prefix == "" {
			v.add(invalid, element(at+"denied_annotation_prefixes", i), "EMPTY", "must not be empty: it would deny every annotation")
		}
	}
	if c.GetMaxAnnotationCount() < 0 {
		v.add(invalid, at+"max_annotation_count", "OUT_OF_RANGE", "%d must not be negative; 0 means no limit", c.GetMaxAnnotationCount())
	}
	if most := c.GetMaxAnnotationCount(); most > 0 && int64(len(base)) > most {
		v.add(invalid, at+"max_annotation_count", "CONTRADICTION", "%d is less than the %d annotations of policy.base", most, len(base))
	}
	denied := metadataRules{deniedPrefixes: c.GetDeniedAnnotationPrefixes()}.denied(base)
	for _, key := range slices.Sorted(maps.Keys(denied)) {
		v.add(invalid, "policy.base.metadata.annotations["+quote(key)+"]", "CONTRADICTION", "begins with %q, which denied_annotation_prefixes denies", denied[key])
	}
}

func (v *refusal) volumes(c *sandboxv1.VolumeConstraints) {
	const at = "policy.constraints.volumes."
	for i, medium := range c.GetAllowedMedia() {
		if medium != sandboxv1.StorageMedium_STORAGE_MEDIUM_DISK && medium != sandboxv1.StorageMedium_STORAGE_MEDIUM_MEMORY {
			v.add(invalid, element(at+"allowed_media", i), "INVALID_MEDIUM", "%s is not a medium; use STORAGE_MEDIUM_DISK or STORAGE_MEDIUM_MEMORY", medium)
		}
	}
	if size := c.GetMaxSize(); size != "" {
		if _, problem := memory.parse(size); problem != "" {
			v.add(invalid, at+"max_size", "INVALID_QUANTITY", "%q %s", size, problem)
		}
	}
}

// sources checks the allowlist: canonical networks, none inside another.
func (v *refusal) sources(cidrs []string) {
	const at = "policy.control_plane_access.source_ip_allowlist.cidrs"
	if len(cidrs) > maxSources {
		v.add(invalid, at, "TOO_MANY", "%d networks are more than %d", len(cidrs), maxSources)
		return
	}
	prefixes := make([]netip.Prefix, len(cidrs))
	for i, text := range cidrs {
		p, problem := parsePrefix(text)
		if problem != "" {
			v.add(invalid, element(at, i), "INVALID_CIDR", "%q %s", text, problem)
			continue
		}
		prefixes[i] = p
	}
	for i, p := range prefixes {
		for j, other := range prefixes {
			if i == j || !p.IsValid() || !other.IsValid() || !other.Contains(p.Addr()) || other.Bits() > p.Bits() {
				continue
			}
			if other == p && i < j {
				continue
			}
			v.add(invalid, element(at, i), "REDUNDANT", "%q is inside %q already; leave it out", cidrs[i], fmt.Sprint(other))
			break
		}
	}
}

func (v *refusal) names(at string, names []string) {
	for i, name := range names {
		if name == "" {
			v.add(invalid, element(at, i), "EMPTY", "must not be empty")
		}
	}
}
