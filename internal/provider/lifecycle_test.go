package provider_test

import (
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
)

const minimal = `policy = {}`

const full = `
  display_name    = "Suite"
  runner_group_id = "suite"
  spec = {
    release_channel = "RELEASE_CHANNEL_RAPID"
    maintenance_policy = {
      windows    = [{ cron = "0 2 * * SAT", duration_seconds = 3600 }]
      exclusions = [{ start_time = "2027-12-20T00:00:00+01:00", end_time = "2028-01-03T00:00:00Z", reason = "" }]
    }
    overrides = {
      node_selector = { "example.com/pool" = "runners", "example.com/empty" = "" }
      tolerations   = [{ key = "example.com/dedicated", operator = "Exists", effect = "" }]
      resources     = { cpu_request = "1000m", memory_request = "2Gi", cpu_limit = "4", memory_limit = "8Gi" }
      annotations   = { "example.com/a" = "1" }
      labels        = { team = "sandboxes" }
      env           = { LOG_LEVEL = "debug" }
      args          = ["--b", "--a"]
      scaling       = { replicas = 1, autoscaling_enabled = false, min_replicas = 0, max_replicas = 0 }
      affinity      = jsonencode({ nodeAffinity = { preferredDuringSchedulingIgnoredDuringExecution = [] } })
    }
    enforce_resource_limits = false
    volumes                 = { enabled = true, csi_driver_allowlist = ["b.example.com", "a.example.com"] }
    tenant_metrics          = { enabled = false, image = "registry.example/metrics:1" }
    image_pull              = { policy = "SANDBOX_IMAGE_PULL_POLICY_ALWAYS" }
    data_plane              = { load_balancer = {
      scope                   = "RUNNER_DATA_PLANE_SERVICE_SCOPE_PRIVATE"
      annotations             = {}
      source_ranges           = ["192.0.2.0/24", "2001:db8::/32"]
      external_traffic_policy = "RUNNER_DATA_PLANE_EXTERNAL_TRAFFIC_POLICY_LOCAL"
      hostname                = "runner.example.com"
    } }
  }
  policy = {
    display_name = "Everything"
    base         = jsonencode({ priorityClassName = "low", dnsConfig = { options = [] } })
    constraints = {
      resources = {
        max_cpu = "8", max_memory = "32Gi", min_cpu = "100m", min_memory = "64Mi", default_cpu = "1", default_memory = "2Gi"
        cpu_ceiling = "16", memory_ceiling = "64Gi", max_gpu_count = 9007199254740993, require_limits = false
      }
      image = { allowed_registries = ["registry.example/"], allowed_images = [] }
      network = {
        allowed_egress = [
          { cidr = { cidr = "192.0.2.0/24", except = ["192.0.2.128/25"] }, ports = [{ protocol = "TCP", port = 443, end_port = 444 }] },
          { https_hostname = "*.example.com", https_hostname_except = ["internal.example.com"] },
          { tenant = "TENANT_SCOPE_SAME_ORG" },
          { selector = { pod_labels = { app = "db" }, namespace_labels = {} } },
        ]
        default_egress            = [{ any = true, ports = [{ port = 443, end_port = 0 }] }]
        allowed_ingress           = [{ any = true }]
        default_ingress           = []
        deny_https_hostname_rules = false
        dns_egress                = "DNS_EGRESS_MODE_ALLOW"
      }
      security = {
        allow_privileged = false, allowed_capabilities = ["NET_BIND_SERVICE"], allowed_seccomp_profiles = ["RuntimeDefault"]
        runtime_class_mappings = [
          { runtime_class = "RUNTIME_CLASS_GPU_DEFAULT", node_default = true },
          { runtime_class = "RUNTIME_CLASS_CPU_DEFAULT", kubernetes_runtime_class_name = "gvisor" },
        ]
      }
      instance  = { allowed_instance_types = ["small"] }
      lifecycle = { default_lifetime_seconds = 0 }
      metadata  = { denied_annotation_prefixes = ["internal.example.com/"], max_annotation_count = 0 }
      volumes   = { allowed_media = ["STORAGE_MEDIUM_MEMORY", "STORAGE_MEDIUM_DISK"], max_size = "10Gi" }
    }
    control_plane_access = { source_ip_allowlist = { cidrs = [] } }
  }
`

// empty checks that a plan after the step changes nothing.
func empty() resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{
		PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()},
	}
}

func attribute(name, value string) resource.TestCheckFunc {
	return resource.TestCheckResourceAttr(address, name, value)
}

func TestARunnerLivesThroughEverySettingAndBackToNone(t *testing.T) {
	s := fakeServer(t, newFake(t))
	lifecycle(t, s)
	s.fake.expect(1, 1,
		"display_name identity.runner_group_id policy spec.data_plane spec.enforce_resource_limits spec.image_pull spec.maintenance_policy spec.overrides spec.release_channel spec.tenant_metrics spec.volumes",
		"spec.data_plane", "spec.data_plane")
	if s.fake.polls != 2 {
		t.Errorf("%d looks at the deleted runner, want 2", s.fake.polls)
	}
}

func TestAServerThatLeavesOutZerosAndAddsFieldsIsUnderstood(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.fake.foreign = true
	lifecycle(t, s)
}

func lifecycle(t *testing.T, s target) {
	t.Helper()
	s.run(t,
		resource.TestStep{
			Config: s.runner(full),
			Check: resource.ComposeAggregateTestCheckFunc(
				attribute("id", s.id),
				attribute("policy.constraints.resources.max_gpu_count", "9007199254740993"),
				attribute("policy.constraints.resources.require_limits", "false"),
				attribute("spec.enforce_resource_limits", "false"),
				attribute("rollout_in_progress", "false"),
				resource.TestCheckResourceAttrSet(address, "etag"),
				resource.TestCheckResourceAttrSet(address, "deployment_spec"),
				resource.TestCheckNoResourceAttr(address, "install_error"),
			),
		},
		resource.TestStep{Config: s.runner(full), ConfigPlanChecks: empty()},
		resource.TestStep{
			Config: s.runner(`spec = { data_plane = { disabled = true } }` + "\n" + minimal),
			Check: resource.ComposeAggregateTestCheckFunc(
				attribute("runner_group_id", "default"),
				attribute("spec.release_channel", "RELEASE_CHANNEL_STABLE"),
				resource.TestCheckNoResourceAttr(address, "spec.overrides"),
				resource.TestCheckNoResourceAttr(address, "policy.constraints"),
			),
		},
		resource.TestStep{Config: s.runner(`spec = { data_plane = { cluster_ip = {} } }` + "\n" + minimal)},
		resource.TestStep{Config: s.runner(`spec = { data_plane = { custom = { advertised_uri = "https://runner.example.com" } } }` + "\n" + minimal)},
		resource.TestStep{Config: s.runner(minimal), ConfigPlanChecks: empty()},
		resource.TestStep{
			ResourceName: address, ImportState: true, ImportStateId: s.id, ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"last_heartbeat_time"},
		},
	)
}

func TestAMinimalRunnerIsCreatedImportedAndDeleted(t *testing.T) {
	s := anyServer(t)
	s.run(t,
		resource.TestStep{
			Config: s.runner(minimal),
			Check:  attribute("spec.release_channel", "RELEASE_CHANNEL_STABLE"),
		},
		resource.TestStep{RefreshState: true},
		resource.TestStep{Config: s.runner(minimal), ConfigPlanChecks: empty()},
		resource.TestStep{
			ResourceName: address, ImportState: true, ImportStateId: s.id, ImportStateKind: resource.ImportCommandWithID,
		},
		resource.TestStep{
			Config: s.runner(`policy = { constraints = { resources = { max_gpu_count = 0 } } }`),
			Check:  attribute("policy.constraints.resources.max_gpu_count", "0"),
		},
	)
	s.fake.expect(1, 1, "policy")
}
