package provider

import (
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

const (
	maxLifetimeSeconds = 30 * 24 * 60 * 60
	maxSourcePrefixes  = 256
	maxPort            = 65535
)

// runtimeClassName is what Kubernetes accepts as the name of a RuntimeClass.
var runtimeClassName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// policyAttribute says what sandboxes on the runner may ask for.
func policyAttribute() schema.SingleNestedAttribute {
	base := jsonText("A fragment of a Kubernetes Pod spec as JSON, merged under every sandbox.")
	base.Sensitive = true
	policy := group("What sandboxes on the runner may ask for and get by default. `{}` restricts nothing and grants nothing.", attributes{
		"display_name": text("A name for people."),
		"base":         base,
		"constraints": group("Limits and defaults; a group that is left out constrains nothing.", attributes{
			"resources": resourcesAttribute(),
			"image": group("Images that sandboxes may run.", attributes{
				"allowed_registries": textSet("Prefixes of image references. Empty: any."),
				"allowed_images":     textSet("Image references. Empty: any that `allowed_registries` admits."),
			}),
			"network":  networkAttribute(),
			"security": securityAttribute(),
			"instance": group("Instance types.", attributes{
				"allowed_instance_types": textSet("Empty: any that the runner offers."),
			}),
			"lifecycle": group("How long sandboxes live.", attributes{
				"default_lifetime_seconds": count("Lifetime of a sandbox that asks for none; a default, not a maximum. 0: the platform's default. At most 2592000 (30 days).", int64validator.AtMost(maxLifetimeSeconds)),
			}),
			"metadata": group("Annotations of sandboxes.", attributes{
				"denied_annotation_prefixes": textSet("Prefixes of annotation keys that are refused."),
				"max_annotation_count":       count("Most annotations of one sandbox. 0: no limit."),
			}),
			"volumes": group("Volumes of sandboxes.", attributes{
				"allowed_media": textSet("Storage media. Empty: any.", stringvalidator.OneOf(enumNames(sandboxv1.StorageMedium(0).Descriptor())...)),
				"max_size":      quantity("Largest volume."),
			}),
		}),
		"control_plane_access": group("From where sandboxes may be called.", attributes{
			"source_ip_allowlist": group("Left out: from anywhere. Present and empty: from no public address.", attributes{
				"cidrs": sourcesAttribute(),
			}),
		}),
	})
	policy.Optional, policy.Required = false, true
	return policy
}

func sourcesAttribute() schema.SetAttribute {
	sources := textSet("At most 256 CIDR blocks, none inside another.", isCIDR())
	sources.Validators = append(sources.Validators, setvalidator.SizeAtMost(maxSourcePrefixes), noneCovered())
	return sources
}

func resourcesAttribute() schema.SingleNestedAttribute {
	return group("CPU, memory and GPUs, per container unless said otherwise.", attributes{
		"max_cpu":        quantity("Most CPU."),
		"max_memory":     quantity("Most memory."),
		"min_cpu":        quantity("Least CPU."),
		"min_memory":     quantity("Least memory."),
		"default_cpu":    quantity("CPU of a container that asks for none."),
		"default_memory": quantity("Memory of a container that asks for none."),
		"max_gpu_count":  count("Most GPUs. Left out: no cap; 0: no GPU at all."),
		"cpu_ceiling":    quantity("Most CPU of the whole sandbox, by its requests."),
		"memory_ceiling": quantity("Most memory of the whole sandbox, by its requests."),
		"require_limits": flag("Whether every container must declare requests and limits."),
	})
}

func networkAttribute() schema.SingleNestedAttribute {
	return group("What sandboxes may reach, and what may reach them.", attributes{
		"allowed_egress":            egressAttribute("What sandboxes may ask for. Empty: no restriction."),
		"default_egress":            egressAttribute("What a sandbox gets that declares no egress; without hostname rules.", noHostnames()),
		"allowed_ingress":           ingressAttribute("What sandboxes may ask for. Empty: no restriction."),
		"default_ingress":           ingressAttribute("What a sandbox gets that declares no ingress."),
		"deny_https_hostname_rules": flag("Whether egress by hostname is refused. Name resolution goes on working."),
		"deny_dns":                  flag("The older name of `deny_https_hostname_rules`."),
		"dns_egress":                choice("Whether sandboxes may ask name servers.", sandboxv1.DnsEgressMode(0).Descriptor()),
	}, notBoth("deny_dns", "deny_https_hostname_rules"))
}

func egressAttribute(description string, more ...validator.Object) schema.ListNestedAttribute {
	members := ruleAttributes()
	members["https_hostname"] = text("A name, or one wildcard as the leftmost label.", stringvalidator.LengthAtLeast(1))
	members["dns_name"] = text("The older name of `https_hostname`.", stringvalidator.LengthAtLeast(1))
	members["https_hostname_except"] = textSet("Names that a wildcard does not cover; only in `allowed_egress`.")
	members["dns_name_except"] = textSet("The older name of `https_hostname_except`.")
	members["selector"] = group("Pods of the cluster.", attributes{
		"pod_labels":       requiredMap(textMap("Labels of the Pods; at least one.")),
		"namespace_labels": textMap("Labels of the Pods' namespaces. Left out: the sandbox's own."),
	})
	rules := append([]validator.Object{
		exactlyOne("destination", "cidr", "https_hostname", "dns_name", "tenant", "any", "selector"),
		notBoth("dns_name_except", "https_hostname_except"),
	}, more...)
	return groupList(description, members, rules...)
}

func ingressAttribute(description string) schema.ListNestedAttribute {
	return groupList(description, ruleAttributes(), exactlyOne("source", "cidr", "tenant", "any"))
}

// ruleAttributes are those that rules of both directions have.
func ruleAttributes() attributes {
	port := schema.Int64Attribute{Required: true, MarkdownDescription: "The port, or the first of the range."}
	port.Validators = append(port.Validators, int64validator.Between(1, maxPort))
	return attributes{
		"cidr": group("An address block.", attributes{
			"cidr":   requiredText("The block, in canonical form.", isCIDR()),
			"except": textSet("Blocks inside it that are left out.", isCIDR()),
		}),
		"tenant": choice("Other sandboxes.", sandboxv1.TenantScope(0).Descriptor()),
		"any":    selection("Every address but the platform's own networks."),
		"ports": groupList("Left out: all ports.", attributes{
			"protocol": text("`TCP` when left out.", stringvalidator.OneOf("TCP", "UDP", "SCTP")),
			"port":     port,
			"end_port": count("The last port of the range. 0: one port.", int64validator.AtMost(maxPort)),
		}, portsAreOrdered()),
	}
}

func requiredMap(m schema.MapAttribute) schema.MapAttribute {
	m.Optional, m.Required = false, true
	m.Validators = append(m.Validators, hasEntries())
	return m
}

func securityAttribute() schema.SingleNestedAttribute {
	mappings := groupSet("Runtime class for each kind of sandbox; instead of the allowlist and the defaults.", attributes{
		"runtime_class": schema.StringAttribute{
			Required: true, MarkdownDescription: "The kind of sandbox.",
			Validators: []validator.String{stringvalidator.OneOf(enumNames(sandboxv1.RuntimeClass(0).Descriptor())...)},
		},
		"kubernetes_runtime_class_name": text("Name of a RuntimeClass.", stringvalidator.RegexMatches(runtimeClassName, "must be the name of a RuntimeClass: lower-case letters, digits, '-' and '.'")),
		"node_default":                  selection("The node's own default runtime."),
	}, exactlyOne("target", "kubernetes_runtime_class_name", "node_default"), notNodeDefaultForNested())
	mappings.Validators = append(mappings.Validators, eachClassOnce())
	return group("Privileges and runtime classes.", attributes{
		"allow_privileged":          flag("Whether containers may be privileged."),
		"allowed_capabilities":      textSet("Capabilities that may be added. Empty: none."),
		"allowed_seccomp_profiles":  textSet("Seccomp profiles that may be chosen."),
		"allowed_runtime_classes":   textSet("Runtime classes that may be pinned. Empty: none."),
		"default_cpu_runtime_class": text("Runtime class of sandboxes without a GPU."),
		"default_gpu_runtime_class": text("Runtime class of sandboxes with a GPU."),
		"runtime_class_mappings":    mappings,
	}, mappingsStandAlone())
}
