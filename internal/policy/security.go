package policy

import (
	"path"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// runtimeDefault is the seccomp profile of a sandbox that asks for none; it is
// allowed under every policy.
const runtimeDefault = "RuntimeDefault"

// securityRules are policy.constraints.security. What they do not list is
// refused.
type securityRules struct {
	privileged     bool
	capabilities   map[string]struct{}
	seccomp        map[string]struct{}
	runtimeClasses map[string]struct{}
	// cpuClass and gpuClass are what a sandbox gets that pins none; empty: the
	// runner's own.
	cpuClass, gpuClass string
}

// security checks the security context of one container.
func (r *resolver) security(at location, spec *sandboxv1.SecurityContext) {
	rules := &r.policy.security
	if spec.GetPrivileged() && !rules.privileged {
		r.refused.add(outsidePolicy, at.String()+".security_context.privileged", "ALLOW_PRIVILEGED",
			"true: the policy allows no privileged containers (policy.constraints.security.allow_privileged); leave it out")
	}
	for i, name := range spec.GetCapabilitiesAdd() {
		field := func() string { return element(at.String()+".security_context.capabilities_add", i) }
		capability, ok := canonicalCapability(name)
		if !ok {
			r.refused.add(invalid, field(), "INVALID_CAPABILITY", "%q is not a capability; write one such as \"NET_ADMIN\"", name)
			continue
		}
		if !has(rules.capabilities, capability) && !has(rules.capabilities, allCapabilities) {
			r.refused.add(outsidePolicy, field(), "ALLOWED_CAPABILITIES",
				"%q is not among the capabilities that the policy allows to add (policy.constraints.security.allowed_capabilities); leave it out", name)
		}
	}
	for i, name := range spec.GetCapabilitiesDrop() {
		if _, ok := canonicalCapability(name); !ok {
			r.refused.add(invalid, element(at.String()+".security_context.capabilities_drop", i), "INVALID_CAPABILITY",
				"%q is not a capability; write one such as \"NET_RAW\" or \"ALL\"", name)
		}
	}
	r.seccomp(at, spec.GetSeccompProfile())
}

func (r *resolver) seccomp(at location, profile string) {
	if profile == "" || profile == runtimeDefault {
		return
	}
	field := at.String() + ".security_context.seccomp_profile"
	if !isSeccompProfile(profile) {
		r.refused.add(invalid, field, "INVALID_SECCOMP_PROFILE",
			`%q is not a profile; write "RuntimeDefault", "Unconfined" or "Localhost/PATH"`, profile)
		return
	}
	if !has(r.policy.security.seccomp, profile) {
		r.refused.add(outsidePolicy, field, "ALLOWED_SECCOMP_PROFILES",
			"%q is not among the profiles that the policy allows (policy.constraints.security.allowed_seccomp_profiles); leave it out for RuntimeDefault", profile)
	}
}

func isSeccompProfile(profile string) bool {
	if profile == runtimeDefault || profile == "Unconfined" {
		return true
	}
	file, ok := strings.CutPrefix(profile, "Localhost/")
	return ok && file != "" && !path.IsAbs(file) && path.Clean(file) == file && file != ".." && !strings.HasPrefix(file, "../")
}

// runtimeClass checks a pinned class, or chooses the policy's by whether the
// sandbox has a GPU.
func (r *resolver) runtimeClass(pin string, gpu bool) string {
	rules := &r.policy.security
	switch {
	case pin != "" && !has(rules.runtimeClasses, pin):
		r.refused.add(outsidePolicy, "spec.runtime_class", "ALLOWED_RUNTIME_CLASSES",
			"%q is not among the runtime classes that the policy allows to pin (policy.constraints.security.allowed_runtime_classes); leave it out for the policy's own", pin)
		return ""
	case pin != "":
		return pin
	case gpu:
		return rules.gpuClass
	}
	return rules.cpuClass
}

// instanceType checks the type that the sandbox asks for.
func (r *resolver) instanceType(name string) {
	if allowed := r.policy.instanceTypes; name != "" && len(allowed) > 0 && !has(allowed, name) {
		r.refused.add(outsidePolicy, "spec.instance_type", "ALLOWED_INSTANCE_TYPES",
			"%q is not among the instance types that the policy allows (policy.constraints.instance.allowed_instance_types); choose another or leave it out", name)
	}
}

// compileSecurity reads the rules, which Validate has found sound.
func compileSecurity(constraints *sandboxv1.SecurityConstraints) securityRules {
	rules := securityRules{
		privileged:     constraints.GetAllowPrivileged(),
		capabilities:   map[string]struct{}{},
		seccomp:        set(constraints.GetAllowedSeccompProfiles()),
		runtimeClasses: set(constraints.GetAllowedRuntimeClasses()),
		cpuClass:       constraints.GetDefaultCpuRuntimeClass(),
		gpuClass:       constraints.GetDefaultGpuRuntimeClass(),
	}
	for _, name := range constraints.GetAllowedCapabilities() {
		if capability, ok := canonicalCapability(name); ok {
			rules.capabilities[capability] = struct{}{}
		}
	}
	for _, mapping := range constraints.GetRuntimeClassMappings() {
		class := mapping.GetKubernetesRuntimeClassName()
		if mapping.GetNodeDefault() {
			class = NodeDefault
		}
		switch mapping.GetRuntimeClass() {
		case sandboxv1.RuntimeClass_RUNTIME_CLASS_CPU_DEFAULT:
			rules.cpuClass = class
		case sandboxv1.RuntimeClass_RUNTIME_CLASS_GPU_DEFAULT:
			rules.gpuClass = class
		default:
			// Nothing here can ask for the classes of a feature yet.
		}
	}
	return rules
}

func set(names []string) map[string]struct{} {
	out := make(map[string]struct{}, len(names))
	for _, name := range names {
		out[name] = struct{}{}
	}
	return out
}

func has(set map[string]struct{}, name string) bool {
	_, ok := set[name]
	return ok
}
