package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// The bounds of a maintenance window, in seconds: a minute and a week.
const (
	minWindowSeconds = 60
	maxWindowSeconds = 604800
)

// specAttribute says how the runner itself is deployed.
func specAttribute() schema.SingleNestedAttribute {
	channel := choice("Where updates come from. `RELEASE_CHANNEL_STABLE` when omitted.", sandboxv1.ReleaseChannel(0).Descriptor())
	channel.Computed = true
	spec := group("How the runner itself is deployed. What is removed from it is reset.", attributes{
		"release_channel":         channel,
		"maintenance_policy":      maintenanceAttribute(),
		"overrides":               overridesAttribute(),
		"enforce_resource_limits": flag("Whether sandboxes must declare both a CPU and a memory limit."),
		"volumes": group("Registered volumes that sandboxes may mount.", attributes{
			"enabled":              flag("Whether volume mounts are on."),
			"csi_driver_allowlist": textSet("CSI drivers that may provide volumes. Empty: the platform's default."),
		}),
		"tenant_metrics": group("The collector of usage per sandbox.", attributes{
			"enabled": flag("Whether usage is collected."),
			"image":   text("Image of the collector. Empty: the release's own."),
		}),
		"image_pull": group("When images of sandboxes are pulled.", attributes{
			"policy": choice("`SANDBOX_IMAGE_PULL_POLICY_ALWAYS` checks the pull credentials at every start.", sandboxv1.SandboxImagePullPolicy(0).Descriptor()),
		}),
		"data_plane": dataPlaneAttribute(),
	})
	spec.Computed = true
	return spec
}

func maintenanceAttribute() schema.SingleNestedAttribute {
	seconds := schema.Int64Attribute{
		Required: true, MarkdownDescription: "How long the window is open, 60 to 604800 seconds.",
	}
	seconds.Validators = append(seconds.Validators, int64validator.Between(minWindowSeconds, maxWindowSeconds))
	return group("When automatic updates may start.", attributes{
		"windows": groupList("Without windows: any time outside the exclusions.", attributes{
			"cron":             requiredText("When the window opens: five cron fields, UTC."),
			"duration_seconds": seconds,
		}),
		"exclusions": groupList("When no update may start; they win over windows.", attributes{
			"start_time": requiredTime("The first moment of the exclusion."),
			"end_time":   requiredTime("The first moment after the exclusion."),
			"reason":     text("Why, for those who read it later."),
		}, exclusionIsOrdered()),
	})
}

func overridesAttribute() schema.SingleNestedAttribute {
	env := textMap("Environment variables.")
	env.Sensitive = true
	return group("Changes to the runner's own deployment, not to sandboxes. Replaced as a whole.", attributes{
		"node_selector": textMap("Labels of the nodes that the runner may use."),
		"tolerations": groupList("Taints that the runner tolerates.", attributes{
			"key":      text("Key of the taint."),
			"operator": text("`Equal` or `Exists`.", stringvalidator.OneOf("Equal", "Exists")),
			"value":    text("Value of the taint, with `Equal`."),
			"effect":   text("Effect of the taint; empty matches all.", stringvalidator.OneOf("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
		}),
		"resources": group("Requests and limits of the runner's own processes.", attributes{
			"cpu_request":    quantity("CPU requested."),
			"memory_request": quantity("Memory requested."),
			"cpu_limit":      quantity("CPU limit."),
			"memory_limit":   quantity("Memory limit."),
		}),
		"annotations": textMap("Annotations."),
		"labels":      textMap("Labels."),
		"env":         env,
		"args":        textList("Arguments, in order."),
		"scaling": group("How many replicas the runner has.", attributes{
			"replicas":            count("Replicas without autoscaling.", fitsInt32()),
			"autoscaling_enabled": flag("Whether replicas follow load."),
			"min_replicas":        count("Lower bound of autoscaling.", fitsInt32()),
			"max_replicas":        count("Upper bound of autoscaling; 0: none.", fitsInt32()),
		}, scalingIsOrdered()),
		"cpu_runtime_class": text("Runtime class of sandboxes without a GPU."),
		"gpu_runtime_class": text("Runtime class of sandboxes with a GPU."),
		"affinity": jsonText("A Kubernetes `Affinity` as JSON, with camelCase keys. Omitted: the platform's default; " +
			"`jsonencode({})`: no rules at all; otherwise these rules and no others."),
	})
}

func dataPlaneAttribute() schema.SingleNestedAttribute {
	return group("How clients reach sandboxes without the gateway. Exactly one way.", attributes{
		"disabled": selection("All data stays on the gateway."),
		"cluster_ip": group("A Service inside the cluster.", attributes{
			"annotations": textMap("Annotations of the Service."),
		}),
		"load_balancer": group("A load balancer that passes mTLS through untouched.", attributes{
			"scope":                   choice("Who can reach it.", sandboxv1.RunnerDataPlaneServiceScope(0).Descriptor()),
			"load_balancer_class":     text("Class of the load balancer."),
			"annotations":             textMap("Annotations of the Service."),
			"source_ranges":           textSet("CIDR blocks that may connect.", isCIDR()),
			"external_traffic_policy": choice("How traffic reaches the runner's Pods.", sandboxv1.RunnerDataPlaneExternalTrafficPolicy(0).Descriptor()),
			"hostname":                text("Name in the server certificate. Empty: the platform may assign one."),
		}),
		"custom": group("A path of your own to a Service inside the cluster.", attributes{
			"advertised_uri":      requiredText("A stable absolute URI, handed to clients."),
			"service_annotations": textMap("Annotations of the Service."),
		}),
	}, exactlyOne("way to reach sandboxes", "disabled", "cluster_ip", "load_balancer", "custom"))
}
