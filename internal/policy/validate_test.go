package policy_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// parsePolicy reads a policy as its users write it.
func parsePolicy(t testing.TB, text string) *sandboxv1.Policy {
	t.Helper()
	p := &sandboxv1.Policy{}
	if err := protojson.Unmarshal([]byte(text), p); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

// full is a policy that uses every field.
const full = `{
  "displayName": "everything",
  "base": {
    "nodeSelector": {"pool": "sandboxes"},
    "tolerations": [{"key": "sandboxes", "operator": "Exists"}],
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "metadata": {"annotations": {"team": "sandboxes"}, "labels": {"team": "sandboxes"}}
  },
  "constraints": {
    "resources": {
      "maxCpu": "8", "maxMemory": "32Gi", "minCpu": "100m", "minMemory": "64Mi", "defaultCpu": "1", "defaultMemory": "2Gi",
      "maxGpuCount": "2", "cpuCeiling": "16", "memoryCeiling": "64Gi", "requireLimits": true
    },
    "image": {"allowedRegistries": ["docker.io/library", "ghcr.io/acme"], "allowedImages": ["python:3.11", "busybox", "ghcr.io/acme/tool"]},
    "network": {
      "allowedEgress": [
        {"any": true, "httpsHostnameExcept": ["*.internal.example.com"]},
        {"cidr": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}, "ports": [{"protocol": "TCP", "port": 443}, {"port": 8000, "endPort": 8999}]},
        {"httpsHostname": "*"},
        {"tenant": "TENANT_SCOPE_SAME_ORG"},
        {"selector": {"podLabels": {"app": "db"}, "namespaceLabels": {"team": "data"}}}
      ],
      "defaultEgress": [{"any": true, "ports": [{"port": 443}]}],
      "allowedIngress": [{"cidr": {"cidr": "203.0.113.0/24"}}, {"tenant": "TENANT_SCOPE_SAME_USER"}],
      "defaultIngress": [{"cidr": {"cidr": "203.0.113.0/25"}}],
      "denyHttpsHostnameRules": false,
      "dnsEgress": "DNS_EGRESS_MODE_ALLOW"
    },
    "security": {
      "allowPrivileged": false, "allowedCapabilities": ["NET_BIND_SERVICE"], "allowedSeccompProfiles": ["RuntimeDefault"],
      "allowedRuntimeClasses": ["gvisor", "nvidia"], "defaultCpuRuntimeClass": "gvisor", "defaultGpuRuntimeClass": "nvidia"
    },
    "instance": {"allowedInstanceTypes": ["cd-gp-i64-erapids"]},
    "lifecycle": {"defaultLifetimeSeconds": "3600"},
    "metadata": {"deniedAnnotationPrefixes": ["kubernetes.io/"], "maxAnnotationCount": "10"},
    "volumes": {"allowedMedia": ["STORAGE_MEDIUM_DISK", "STORAGE_MEDIUM_MEMORY"], "maxSize": "100Gi"}
  },
  "controlPlaneAccess": {"sourceIpAllowlist": {"cidrs": ["198.51.100.0/24", "2001:db8::/32"]}}
}`

func TestSoundPolicies(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                         `{}`,
		"empty constraints":             `{"constraints": {}}`,
		"no GPU":                        `{"constraints": {"resources": {"maxGpuCount": "0"}}}`,
		"a large number of GPUs":        `{"constraints": {"resources": {"maxGpuCount": "9007199254740993"}}}`,
		"no public source":              `{"controlPlaneAccess": {"sourceIpAllowlist": {}}}`,
		"control plane access, no list": `{"controlPlaneAccess": {}}`,
		"older names":                   `{"constraints": {"network": {"denyDns": true, "allowedEgress": [{"dnsName": "*", "dnsNameExcept": ["bad.example.com"]}]}}}`,
		"mappings": `{"constraints": {"security": {"runtimeClassMappings": [
			{"runtimeClass": "RUNTIME_CLASS_GPU_DEFAULT", "nodeDefault": true},
			{"runtimeClass": "RUNTIME_CLASS_CPU_NESTED_VIRT", "kubernetesRuntimeClassName": "kata.v2"}]}}}`,
		"everything": full,
	} {
		t.Run(name, func(t *testing.T) {
			p := parsePolicy(t, text)
			if v := policy.Validate(p); v != nil {
				t.Errorf("%v", v)
			}
			if v := policy.Validate(policy.Normalize(p)); v != nil {
				t.Errorf("normalized: %v", v)
			}
		})
	}
	if v := policy.Validate(nil); v != nil {
		t.Errorf("nil: %v", v)
	}
}

func TestWhatIsWrongWithAPolicyIsSaidWhenItIsWritten(t *testing.T) {
	resources := func(fields string) string { return `{"constraints": {"resources": {` + fields + `}}}` }
	network := func(fields string) string { return `{"constraints": {"network": {` + fields + `}}}` }
	security := func(fields string) string { return `{"constraints": {"security": {` + fields + `}}}` }
	mappings := func(list string) string { return security(`"runtimeClassMappings": [` + list + `]`) }
	sources := func(list string) string {
		return `{"controlPlaneAccess": {"sourceIpAllowlist": {"cidrs": [` + list + `]}}}`
	}
	const (
		atResources = "policy.constraints.resources."
		atNetwork   = "policy.constraints.network."
		atSecurity  = "policy.constraints.security."
		atMappings  = "policy.constraints.security.runtime_class_mappings"
		atSources   = "policy.control_plane_access.source_ip_allowlist.cidrs"
		cpuDefault  = `"runtimeClass": "RUNTIME_CLASS_CPU_DEFAULT"`
	)
	tests := []struct {
		name, policy string
		want         []string
	}{
		{
			"each bad quantity", resources(`"maxCpu": "eight", "minMemory": "-1Gi", "memoryCeiling": "100m"`),
			[]string{atResources + "max_cpu INVALID_QUANTITY", atResources + "memory_ceiling INVALID_QUANTITY", atResources + "min_memory INVALID_QUANTITY"},
		},
		{"a minimum over the maximum", resources(`"minCpu": "4", "maxCpu": "2000m"`), []string{atResources + "min_cpu CONTRADICTION"}},
		{"a default over the maximum", resources(`"defaultMemory": "4Gi", "maxMemory": "2Gi"`), []string{atResources + "default_memory CONTRADICTION"}},
		{"a default under the minimum", resources(`"defaultCpu": "100m", "minCpu": "1"`), []string{atResources + "min_cpu CONTRADICTION"}},
		{"a default over the ceiling", resources(`"defaultCpu": "2", "cpuCeiling": "1"`), []string{atResources + "default_cpu CONTRADICTION"}},
		{"less than no GPU", resources(`"maxGpuCount": "-1"`), []string{atResources + "max_gpu_count OUT_OF_RANGE"}},

		{"a registry with a scheme", `{"constraints": {"image": {"allowedRegistries": ["https://ghcr.io", "", "ghcr.io/*"]}}}`, []string{
			"policy.constraints.image.allowed_registries[0] INVALID_REGISTRY", "policy.constraints.image.allowed_registries[1] INVALID_REGISTRY",
			"policy.constraints.image.allowed_registries[2] INVALID_REGISTRY",
		}},
		{"an image that is none", `{"constraints": {"image": {"allowedImages": ["Python", "python"]}}}`, []string{"policy.constraints.image.allowed_images[0] INVALID_IMAGE"}},

		{"a rule without a destination", network(`"allowedEgress": [{"ports": [{"port": 443}]}]`), []string{atNetwork + "allowed_egress[0] DESTINATION_REQUIRED"}},
		{"a rule without a source", network(`"allowedIngress": [{}]`), []string{atNetwork + "allowed_ingress[0] SOURCE_REQUIRED"}},
		{"any that is false", network(`"allowedEgress": [{"any": false}]`), []string{atNetwork + "allowed_egress[0].any INVALID_ANY"}},
		{"a network that is none", network(`"allowedEgress": [{"cidr": {"cidr": "10.0.0.1/8"}}]`), []string{atNetwork + "allowed_egress[0].cidr.cidr INVALID_CIDR"}},
		{"a range of ports backwards", network(`"allowedEgress": [{"any": true, "ports": [{"port": 90, "endPort": 80}]}]`), []string{atNetwork + "allowed_egress[0].ports[0].end_port INVALID_PORT"}},
		{"a name in the default", network(`"defaultEgress": [{"httpsHostname": "example.com"}]`), []string{atNetwork + "default_egress[0] HOSTNAME_IN_DEFAULT"}},
		{"every name in the default", network(`"defaultEgress": [{"httpsHostname": "*"}]`), []string{atNetwork + "default_egress[0].https_hostname INVALID_HOSTNAME"}},
		{"excepted names in the default", network(`"defaultEgress": [{"any": true, "httpsHostnameExcept": ["example.com"]}]`), []string{atNetwork + "default_egress[0].https_hostname_except[0] INVALID_HOSTNAME"}},
		{"excepted names of a network", network(`"allowedEgress": [{"cidr": {"cidr": "10.0.0.0/8"}, "httpsHostnameExcept": ["example.com"]}]`), []string{atNetwork + "allowed_egress[0].https_hostname_except[0] INVALID_HOSTNAME"}},
		{"a default outside the envelope", network(`"allowedEgress": [{"cidr": {"cidr": "10.0.0.0/8"}}], "defaultEgress": [{"any": true}]`), []string{atNetwork + "default_egress[0] CONTRADICTION"}},
		{"a default of ingress outside the envelope", network(`"allowedIngress": [{"cidr": {"cidr": "10.0.0.0/8"}}], "defaultIngress": [{"any": true}]`), []string{atNetwork + "default_ingress[0] CONTRADICTION"}},
		{
			"both spellings of one field", network(`"denyDns": true, "denyHttpsHostnameRules": true, "allowedEgress": [{"any": true, "dnsNameExcept": ["a.example"], "httpsHostnameExcept": ["a.example"]}]`),
			[]string{atNetwork + "deny_dns MUTUALLY_EXCLUSIVE", atNetwork + "allowed_egress[0].dns_name_except MUTUALLY_EXCLUSIVE"},
		},

		{"a capability that does not exist", security(`"allowedCapabilities": ["NET_ADMIN", "POWER"]`), []string{atSecurity + "allowed_capabilities[1] INVALID_CAPABILITY"}},
		{"a profile that does not exist", security(`"allowedSeccompProfiles": ["Localhost/"]`), []string{atSecurity + "allowed_seccomp_profiles[0] INVALID_SECCOMP_PROFILE"}},
		{"a class that is no name", security(`"allowedRuntimeClasses": ["Kata"]`), []string{atSecurity + "allowed_runtime_classes[0] INVALID_RUNTIME_CLASS"}},
		{"a default that is not listed", security(`"allowedRuntimeClasses": ["runc"], "defaultGpuRuntimeClass": "nvidia"`), []string{atSecurity + "default_gpu_runtime_class CONTRADICTION"}},
		{"mappings beside a list", security(`"allowedRuntimeClasses": ["runc"], "runtimeClassMappings": [{` + cpuDefault + `, "nodeDefault": true}]`), []string{atMappings + " MUTUALLY_EXCLUSIVE"}},
		{"mappings beside a default", security(`"defaultCpuRuntimeClass": "runc", "runtimeClassMappings": [{` + cpuDefault + `, "nodeDefault": true}]`), []string{atMappings + " MUTUALLY_EXCLUSIVE"}},
		{"a class mapped twice", mappings(`{` + cpuDefault + `, "nodeDefault": true}, {` + cpuDefault + `, "nodeDefault": true}`), []string{atMappings + "[1].runtime_class DUPLICATE"}},
		{"a mapping without a target", mappings(`{` + cpuDefault + `}`), []string{atMappings + "[0] TARGET_REQUIRED"}},
		{"a mapping of no class", mappings(`{"nodeDefault": true}`), []string{atMappings + "[0].runtime_class INVALID_RUNTIME_CLASS"}},
		{"a mapping to no name", mappings(`{` + cpuDefault + `, "kubernetesRuntimeClassName": "Kata"}`), []string{atMappings + "[0].kubernetes_runtime_class_name INVALID_RUNTIME_CLASS"}},
		{"a node default that is false", mappings(`{` + cpuDefault + `, "nodeDefault": false}`), []string{atMappings + "[0].node_default INVALID_TARGET"}},
		{"the node's default for nested virtualization", mappings(`{"runtimeClass": "RUNTIME_CLASS_CPU_NESTED_VIRT", "nodeDefault": true}`), []string{atMappings + "[0].node_default INVALID_TARGET"}},

		{"a lifetime over 30 days", `{"constraints": {"lifecycle": {"defaultLifetimeSeconds": "2592001"}}}`, []string{"policy.constraints.lifecycle.default_lifetime_seconds OUT_OF_RANGE"}},
		{"an instance type of no name", `{"constraints": {"instance": {"allowedInstanceTypes": [""]}}}`, []string{"policy.constraints.instance.allowed_instance_types[0] EMPTY"}},
		{
			"a prefix of nothing", `{"constraints": {"metadata": {"deniedAnnotationPrefixes": [""], "maxAnnotationCount": "-1"}}}`,
			[]string{"policy.constraints.metadata.denied_annotation_prefixes[0] EMPTY", "policy.constraints.metadata.max_annotation_count OUT_OF_RANGE"},
		},
		{
			"a base that its own rules refuse", `{"base": {"metadata": {"annotations": {"a.x": "1", "b": "2"}}}, "constraints": {"metadata": {"deniedAnnotationPrefixes": ["a."], "maxAnnotationCount": "1"}}}`,
			[]string{"policy.constraints.metadata.max_annotation_count CONTRADICTION", `policy.base.metadata.annotations["a.x"] CONTRADICTION`},
		},
		{
			"volumes of no medium and no size", `{"constraints": {"volumes": {"allowedMedia": ["STORAGE_MEDIUM_UNSPECIFIED"], "maxSize": "huge"}}}`,
			[]string{"policy.constraints.volumes.allowed_media[0] INVALID_MEDIUM", "policy.constraints.volumes.max_size INVALID_QUANTITY"},
		},

		{"a source that is no network", sources(`"198.51.100.7", "198.51.100.7/24", "::ffff:198.51.100.0/120"`), []string{atSources + "[0] INVALID_CIDR", atSources + "[1] INVALID_CIDR", atSources + "[2] INVALID_CIDR"}},
		{"a source inside another", sources(`"198.51.100.0/24", "198.51.100.7/32"`), []string{atSources + "[1] REDUNDANT"}},
		{"a source twice", sources(`"198.51.100.0/24", "198.51.100.0/24"`), []string{atSources + "[1] REDUNDANT"}},
		{"one family says nothing of the other", sources(`"0.0.0.0/0", "::/0"`), nil},

		{"a base that opens the node", `{"base": {"hostNetwork": true, "containers": [], "volumes": [{"name": "x", "hostPath": {"path": "/"}}], "metadata": {"name": "x", "labels": {"a": 1}}}}`, []string{
			"policy.base.containers BASE_FIELD", "policy.base.hostNetwork BASE_FIELD", `policy.base.metadata.labels["a"] BASE_FIELD`,
			"policy.base.metadata.name BASE_FIELD", "policy.base.volumes[0].hostPath BASE_FIELD",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, v := range policy.Validate(parsePolicy(t, test.policy)) {
				got = append(got, v.Field+" "+v.Reason)
				if v.Description == "" {
					t.Errorf("%s says nothing", v.Field)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnAllowlistHasAtMost256Networks(t *testing.T) {
	allowlist := &sandboxv1.SourceIpAllowlist{}
	for i := range 257 {
		allowlist.Cidrs = append(allowlist.Cidrs, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
	}
	p := &sandboxv1.Policy{ControlPlaneAccess: &sandboxv1.ControlPlaneAccessPolicy{SourceIpAllowlist: allowlist}}
	if v := policy.Validate(p); len(v) != 1 || v[0].Reason != "TOO_MANY" {
		t.Errorf("%v", v)
	}
	allowlist.Cidrs = allowlist.Cidrs[:256]
	if v := policy.Validate(p); v != nil {
		t.Errorf("%v", v)
	}
}

func TestNormalizeUsesTheNewestNamesAndKeepsTheRest(t *testing.T) {
	tests := []struct{ name, given, want string }{
		{"nothing", `{}`, `{}`},
		{
			"presence", `{"constraints": {"resources": {"maxGpuCount": "0", "requireLimits": false}, "network": {}}, "controlPlaneAccess": {"sourceIpAllowlist": {}}}`,
			`{"constraints": {"resources": {"maxGpuCount": "0", "requireLimits": false}, "network": {}}, "controlPlaneAccess": {"sourceIpAllowlist": {}}}`,
		},
		{
			"older names",
			`{"constraints": {"network": {"denyDns": false, "allowedEgress": [{"dnsName": "*", "dnsNameExcept": ["a.example"]}], "defaultEgress": [{"dnsName": "b.example"}]}}}`,
			`{"constraints": {"network": {"denyHttpsHostnameRules": false, "allowedEgress": [{"httpsHostname": "*", "httpsHostnameExcept": ["a.example"]}], "defaultEgress": [{"httpsHostname": "b.example"}]}}}`,
		},
		{
			"the order of mappings",
			`{"constraints": {"security": {"runtimeClassMappings": [{"runtimeClass": "RUNTIME_CLASS_GPU_DEFAULT", "nodeDefault": true}, {"runtimeClass": "RUNTIME_CLASS_CPU_DEFAULT", "nodeDefault": true}]}}}`,
			`{"constraints": {"security": {"runtimeClassMappings": [{"runtimeClass": "RUNTIME_CLASS_CPU_DEFAULT", "nodeDefault": true}, {"runtimeClass": "RUNTIME_CLASS_GPU_DEFAULT", "nodeDefault": true}]}}}`,
		},
		{"keys in base are nobody's older names", `{"base": {"dnsConfig": {"dns_name": "x", "deny_dns": true}}}`, `{"base": {"dnsConfig": {"dns_name": "x", "deny_dns": true}}}`},
		{
			"spelling and order of everything else", `{"constraints": {"resources": {"maxCpu": "1000m"}, "image": {"allowedRegistries": ["Z.example", "a.example/"]}}}`,
			`{"constraints": {"resources": {"maxCpu": "1000m"}, "image": {"allowedRegistries": ["Z.example", "a.example/"]}}}`,
		},
		{"a policy that is there already", full, full},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			given := parsePolicy(t, test.given)
			got := policy.Normalize(given)
			if diff := cmp.Diff(parsePolicy(t, test.want), got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(parsePolicy(t, test.given), given, protocmp.Transform()); diff != "" {
				t.Errorf("the argument was changed:\n%s", diff)
			}
			if diff := cmp.Diff(got, policy.Normalize(got), protocmp.Transform()); diff != "" {
				t.Errorf("twice is not the same as once:\n%s", diff)
			}
		})
	}
	if got := policy.Normalize(nil); got != nil {
		t.Errorf("nil became %v", got)
	}
}
