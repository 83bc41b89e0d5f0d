package policy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbar-project/sandbar/internal/policy"
)

func TestExplainSaysWhatAPolicySays(t *testing.T) {
	want := []policy.Statement{
		{"policy.base", "adds to every sandbox: metadata, nodeSelector, tolerations, volumes"},
		{"policy.constraints.resources.default_cpu", "a container that declares none gets 1 of cpu"},
		{"policy.constraints.resources.min_cpu", "a container gets at least 100m of cpu"},
		{"policy.constraints.resources.max_cpu", "a container gets at most 8 of cpu"},
		{"policy.constraints.resources.cpu_ceiling", "the containers of a sandbox request at most 16 of cpu in all"},
		{"policy.constraints.resources.default_memory", "a container that declares none gets 2Gi of memory"},
		{"policy.constraints.resources.min_memory", "a container gets at least 64Mi of memory"},
		{"policy.constraints.resources.max_memory", "a container gets at most 32Gi of memory"},
		{"policy.constraints.resources.memory_ceiling", "the containers of a sandbox request at most 64Gi of memory in all"},
		{"policy.constraints.resources.max_gpu_count", "a container gets at most 2 GPUs"},
		{"policy.constraints.resources.require_limits", "every container declares requests and limits"},
		{"policy.constraints.image.allowed_registries", "images come from docker.io/library, ghcr.io/acme"},
		{"policy.constraints.image.allowed_images", "images are python:3.11, busybox, ghcr.io/acme/tool"},
		{"policy.constraints.network.allowed_egress[0]", "a sandbox may ask to reach any on every port but not https://*.internal.example.com"},
		{"policy.constraints.network.allowed_egress[1]", "a sandbox may ask to reach 10.0.0.0/8 except 10.1.0.0/16 on TCP 443, TCP 8000–8999"},
		{"policy.constraints.network.allowed_egress[2]", "a sandbox may ask to reach https://*"},
		{"policy.constraints.network.allowed_egress[3]", "a sandbox may ask to reach TENANT_SCOPE_SAME_ORG on every port"},
		{"policy.constraints.network.allowed_egress[4]", "a sandbox may ask to reach pods with app=db in namespaces with team=data on every port"},
		{"policy.constraints.network.default_egress[0]", "a sandbox that asks for nothing reaches any on TCP 443"},
		{"policy.constraints.network.allowed_ingress[0]", "a sandbox may let in 203.0.113.0/24 on every port"},
		{"policy.constraints.network.allowed_ingress[1]", "a sandbox may let in TENANT_SCOPE_SAME_USER on every port"},
		{"policy.constraints.network.default_ingress[0]", "a sandbox that says nothing lets in 203.0.113.0/25 on every port"},
		{"policy.constraints.security.allowed_capabilities", "containers may add the capabilities NET_BIND_SERVICE"},
		{"policy.constraints.security.allowed_seccomp_profiles", "beside RuntimeDefault, containers may use the seccomp profiles RuntimeDefault"},
		{"policy.constraints.security.allowed_runtime_classes", "sandboxes may pin the runtime classes gvisor, nvidia"},
		{"policy.constraints.security.default_cpu_runtime_class", "a sandbox without a GPU runs in gvisor"},
		{"policy.constraints.security.default_gpu_runtime_class", "a sandbox with a GPU runs in nvidia"},
		{"policy.constraints.instance.allowed_instance_types", "instance types are cd-gp-i64-erapids"},
		{"policy.constraints.lifecycle.default_lifetime_seconds", "a sandbox that asks for no lifetime lives 1h0m0s"},
		{"policy.constraints.metadata.denied_annotation_prefixes", `no annotation begins with "kubernetes.io/"`},
		{"policy.constraints.metadata.max_annotation_count", "at most 10 annotations"},
		{"policy.constraints.volumes.allowed_media", "volumes are on disk, memory"},
		{"policy.constraints.volumes.max_size", "a volume holds at most 100Gi"},
		{"policy.control_plane_access.source_ip_allowlist", "requests are taken from these public networks: 198.51.100.0/24, 2001:db8::/32"},
	}
	if diff := cmp.Diff(want, policy.Explain(parsePolicy(t, full))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExplainSaysWhatSilenceMeans(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		want   policy.Statement
	}{
		"no envelope":      {`{}`, policy.Statement{Field: "policy.constraints.network.allowed_egress", Text: "a sandbox may ask to reach anything, private networks included; only link-local, loopback and multicast ones must be listed"}},
		"no rules":         {`{}`, policy.Statement{Field: "policy.constraints.network.default_egress", Text: "a sandbox that asks for nothing reaches nothing"}},
		"no GPU":           {`{"constraints": {"resources": {"maxGpuCount": "0"}}}`, policy.Statement{Field: "policy.constraints.resources.max_gpu_count", Text: "no container gets a GPU"}},
		"no public source": {`{"controlPlaneAccess": {"sourceIpAllowlist": {}}}`, policy.Statement{Field: "policy.control_plane_access.source_ip_allowlist", Text: "no request is taken from a public address"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range policy.Explain(parsePolicy(t, test.policy)) {
				if s == test.want {
					return
				}
			}
			t.Errorf("%v is not said", test.want)
		})
	}
	if got := policy.Explain(nil); len(got) != 1 {
		t.Errorf("no policy: %v", got)
	}
}
