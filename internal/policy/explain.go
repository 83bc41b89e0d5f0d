package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Statement is one thing that a policy says.
type Statement struct {
	// Field is where it says it: "policy.constraints.resources.max_cpu".
	Field string
	// Text is for people: "a container gets at most 8 of cpu".
	Text string
}

// Explain lists what a policy says, in the order of its fields, and what its
// silence means where that is easily missed. A nil policy says that no sandbox
// is taken.
func Explain(p *sandboxv1.Policy) []Statement {
	if p == nil {
		return []Statement{{"policy", "none has been set: no sandbox is taken"}}
	}
	p = Normalize(p)
	var e explanation
	if fields := p.GetBase().GetFields(); len(fields) > 0 {
		e.say("policy.base", "adds to every sandbox: %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
	}
	c := p.GetConstraints()
	e.resources(c.GetResources())
	e.allow("policy.constraints.image.allowed_registries", "images come from", c.GetImage().GetAllowedRegistries())
	e.allow("policy.constraints.image.allowed_images", "images are", c.GetImage().GetAllowedImages())
	e.network(c.GetNetwork())
	e.security(c.GetSecurity())
	e.allow("policy.constraints.instance.allowed_instance_types", "instance types are", c.GetInstance().GetAllowedInstanceTypes())
	if seconds := c.GetLifecycle().GetDefaultLifetimeSeconds(); seconds > 0 {
		e.say("policy.constraints.lifecycle.default_lifetime_seconds", "a sandbox that asks for no lifetime lives %s", time.Duration(seconds)*time.Second)
	}
	for _, prefix := range c.GetMetadata().GetDeniedAnnotationPrefixes() {
		e.say("policy.constraints.metadata.denied_annotation_prefixes", "no annotation begins with %q", prefix)
	}
	if n := c.GetMetadata().GetMaxAnnotationCount(); n > 0 {
		e.say("policy.constraints.metadata.max_annotation_count", "at most %d annotations", n)
	}
	var media []string
	for _, medium := range c.GetVolumes().GetAllowedMedia() {
		media = append(media, strings.ToLower(strings.TrimPrefix(medium.String(), "STORAGE_MEDIUM_")))
	}
	e.allow("policy.constraints.volumes.allowed_media", "volumes are on", media)
	if size := c.GetVolumes().GetMaxSize(); size != "" {
		e.say("policy.constraints.volumes.max_size", "a volume holds at most %s", size)
	}
	if allowlist := p.GetControlPlaneAccess().GetSourceIpAllowlist(); allowlist != nil {
		const field = "policy.control_plane_access.source_ip_allowlist"
		if len(allowlist.GetCidrs()) == 0 {
			e.say(field, "no request is taken from a public address")
		}
		e.allow(field, "requests are taken from these public networks:", allowlist.GetCidrs())
	}
	return e.statements
}

type explanation struct {
	statements []Statement
}

func (e *explanation) say(field, format string, args ...any) {
	e.statements = append(e.statements, Statement{field, fmt.Sprintf(format, args...)})
}

// allow says an allowlist; an empty one says nothing.
func (e *explanation) allow(field, verb string, names []string) {
	if len(names) > 0 {
		e.say(field, "%s %s", verb, strings.Join(names, ", "))
	}
}

func (e *explanation) resources(c *sandboxv1.ResourceConstraints) {
	const at = "policy.constraints.resources."
	for _, s := range []struct{ field, value, format string }{
		{"default_cpu", c.GetDefaultCpu(), "a container that declares none gets %s of cpu"},
		{"min_cpu", c.GetMinCpu(), "a container gets at least %s of cpu"},
		{"max_cpu", c.GetMaxCpu(), "a container gets at most %s of cpu"},
		{"cpu_ceiling", c.GetCpuCeiling(), "the containers of a sandbox request at most %s of cpu in all"},
		{"default_memory", c.GetDefaultMemory(), "a container that declares none gets %s of memory"},
		{"min_memory", c.GetMinMemory(), "a container gets at least %s of memory"},
		{"max_memory", c.GetMaxMemory(), "a container gets at most %s of memory"},
		{"memory_ceiling", c.GetMemoryCeiling(), "the containers of a sandbox request at most %s of memory in all"},
	} {
		if s.value != "" {
			e.say(at+s.field, s.format, s.value)
		}
	}
	switch most := maxGPUs(c); {
	case most == nil:
	case *most == 0:
		e.say(at+"max_gpu_count", "no container gets a GPU")
	default:
		e.say(at+"max_gpu_count", "a container gets at most %d GPUs", *most)
	}
	if c.GetRequireLimits() {
		e.say(at+"require_limits", "every container declares requests and limits")
	}
}

func (e *explanation) network(c *sandboxv1.NetworkConstraints) {
	const at = "policy.constraints.network."
	for i, rule := range c.GetAllowedEgress() {
		e.say(element(at+"allowed_egress", i), "a sandbox may ask to reach %s", describePolicyEgress(rule))
	}
	if len(c.GetAllowedEgress()) == 0 {
		e.say(at+"allowed_egress", "a sandbox may ask to reach anything, private networks included; only link-local, loopback and multicast ones must be listed")
	}
	for i, rule := range c.GetDefaultEgress() {
		e.say(element(at+"default_egress", i), "a sandbox that asks for nothing reaches %s", describePolicyEgress(rule))
	}
	if len(c.GetDefaultEgress()) == 0 {
		e.say(at+"default_egress", "a sandbox that asks for nothing reaches nothing")
	}
	for i, rule := range c.GetAllowedIngress() {
		e.say(element(at+"allowed_ingress", i), "a sandbox may let in %s", describeIngress(rule))
	}
	for i, rule := range c.GetDefaultIngress() {
		e.say(element(at+"default_ingress", i), "a sandbox that says nothing lets in %s", describeIngress(rule))
	}
	if c.GetDenyHttpsHostnameRules() {
		e.say(at+"deny_https_hostname_rules", "no sandbox may ask for hosts by name")
	}
	if c.GetDnsEgress() == sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_DENY {
		e.say(at+"dns_egress", "sandboxes have no DNS")
	}
}

func (e *explanation) security(c *sandboxv1.SecurityConstraints) {
	const at = "policy.constraints.security."
	if c.GetAllowPrivileged() {
		e.say(at+"allow_privileged", "containers may be privileged")
	}
	e.allow(at+"allowed_capabilities", "containers may add the capabilities", c.GetAllowedCapabilities())
	e.allow(at+"allowed_seccomp_profiles", "beside RuntimeDefault, containers may use the seccomp profiles", c.GetAllowedSeccompProfiles())
	e.allow(at+"allowed_runtime_classes", "sandboxes may pin the runtime classes", c.GetAllowedRuntimeClasses())
	if class := c.GetDefaultCpuRuntimeClass(); class != "" {
		e.say(at+"default_cpu_runtime_class", "a sandbox without a GPU runs in %s", class)
	}
	if class := c.GetDefaultGpuRuntimeClass(); class != "" {
		e.say(at+"default_gpu_runtime_class", "a sandbox with a GPU runs in %s", class)
	}
	for i, mapping := range c.GetRuntimeClassMappings() {
		class := mapping.GetKubernetesRuntimeClassName()
		if mapping.GetNodeDefault() {
			class = NodeDefault
		}
		e.say(element(at+"runtime_class_mappings", i), "%s is %s", mapping.GetRuntimeClass(), class)
	}
}
