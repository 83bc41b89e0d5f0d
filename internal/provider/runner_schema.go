package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"google.golang.org/protobuf/reflect/protoreflect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/provider/bridge"
)

// defaultGroup is the group of runners that name none.
const defaultGroup = "default"

func runnerSchema() schema.Schema {
	return schema.Schema{
		MarkdownDescription: "A managed runner: the component that runs sandboxes in one cluster, and the policy that says what those sandboxes may ask for. A cluster has at most one.",
		Attributes: attributes{
			"id":         stable("The same as `runner_id`."),
			"runner_id":  identity("Name of the runner, unique in the organization."),
			"cluster_id": identity("UUID of the cluster."),
			"zone":       identity("Zone of the cluster, in lower case.", isLowerCase()),
			"runner_group_id": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(defaultGroup),
				MarkdownDescription: "Group of the runner, `" + defaultGroup + "` when omitted.",
				Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"cluster_name": stable("Name of the cluster."),
			"display_name": text("A name for people."),
			"spec":         specAttribute(),
			"policy":       policyAttribute(),

			"etag":                  observedText("Revision token of the policy."),
			"install_status":        observedText("How far the installation is; `RUNNER_INSTALL_STATUS_READY` when it is done."),
			"connection_status":     observedText("Whether the runner is connected: `RUNNER_CONNECTION_STATUS_CONNECTED`."),
			"active_config_version": observedText("Version of the runner that serves now."),
			"active_revision":       observedNumber("Revision that serves now."),
			"target_revision":       observedNumber("Revision that shall serve."),
			"update_available":      observedFlag("Whether the channel offers a newer version."),
			"rollout_in_progress":   observedFlag("Whether a rollout is under way."),
			"create_time":           stable("When the runner was created."),
			"update_time":           observedText("When the runner was last changed."),
			"last_heartbeat_time":   observedText("When the runner was last heard of."),
			"deployment_spec": schema.StringAttribute{
				Computed: true, Sensitive: true,
				MarkdownDescription: "What the runner is deployed with, as JSON: the release's defaults, the organization's settings and the overrides, resolved.",
			},
			"install_error":     observedText("Why no revision of the runner serves, as JSON; only while the installation has failed."),
			"data_plane_status": observedText("State of the direct endpoint, as JSON."),
		},
	}
}

// identity is a required attribute that cannot change in place.
func identity(description string, validators ...validator.String) schema.StringAttribute {
	attribute := requiredText(description+" A change replaces the runner.", validators...)
	attribute.PlanModifiers = []planmodifier.String{stringplanmodifier.RequiresReplace()}
	return attribute
}

// stable is an observed attribute that stays as it is for the runner's life.
func stable(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Computed: true, MarkdownDescription: description,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
	}
}

func observedText(description string) schema.StringAttribute {
	return schema.StringAttribute{Computed: true, MarkdownDescription: description}
}

func observedNumber(description string) schema.Int64Attribute {
	return schema.Int64Attribute{Computed: true, MarkdownDescription: description}
}

func observedFlag(description string) schema.BoolAttribute {
	return schema.BoolAttribute{Computed: true, MarkdownDescription: description}
}

// configured are the root attributes whose difference is a change; identity is
// not among them, because a change of it replaces the runner.
func configured() []string { return []string{"display_name", "runner_group_id", "spec", "policy"} }

// observed are the root attributes that may change with every write.
func observed() []string {
	return []string{
		"etag", "install_status", "connection_status", "active_config_version", "active_revision", "target_revision",
		"update_available", "rollout_in_progress", "update_time", "last_heartbeat_time",
		"deployment_spec", "install_error", "data_plane_status",
	}
}

// runnerBridge converts between the schema and the contract.
func runnerBridge() bridge.Bridge {
	const contract = "coreweave.sandbox.v1."
	same := map[protoreflect.FullName]func(a, b string) bool{contract + "VolumeConstraints.max_size": sameQuantity}
	for _, holder := range []protoreflect.MessageDescriptor{
		(&sandboxv1.RunnerResources{}).ProtoReflect().Descriptor(),
		(&sandboxv1.ResourceConstraints{}).ProtoReflect().Descriptor(),
	} {
		for i := range holder.Fields().Len() {
			if field := holder.Fields().Get(i); field.Kind() == protoreflect.StringKind {
				same[field.FullName()] = sameQuantity
			}
		}
	}
	return bridge.New(bridge.Rules{
		Nested: map[protoreflect.FullName]map[string]string{
			contract + "ManagedRunner": {
				"id":              "identity.runner_id",
				"runner_id":       "identity.runner_id",
				"runner_group_id": "identity.runner_group_id",
				"zone":            "identity.zone",
				"cluster_id":      "identity.cluster_id",
				"cluster_name":    "identity.cluster_name",
			},
		},
		Aliases: map[protoreflect.FullName]map[string]string{
			contract + "NetworkConstraints": {"deny_dns": "deny_https_hostname_rules"},
			contract + "PolicyEgressRule": {
				"dns_name":        "https_hostname",
				"dns_name_except": "https_hostname_except",
			},
		},
		Distinct: map[protoreflect.FullName]bool{contract + "ResourceConstraints.max_gpu_count": true},
		Same:     same,
	})
}
