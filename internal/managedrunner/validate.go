package managedrunner

import (
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/fieldrules"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// Validate says what is wrong with a declared runner. Paths are relative to
// the runner: "spec.overrides.resources.cpu_limit". What an identity lacks is
// not told; see ValidateIdentity. It does not repeat the rules that the proto
// files carry (package fieldrules).
func Validate(runner *sandboxv1.ManagedRunner) []apierr.Violation {
	var f apierr.Violations
	if character, found := fieldrules.Hidden(runner.GetDisplayName()); found {
		f.Add("display_name", "HIDDEN_CHARACTER", "%q contains the character %U, which is not seen; leave it out", runner.GetDisplayName(), character)
	}
	validateGroup(&f, runner.GetIdentity().GetRunnerGroupId())
	validateSpec(&f, runner.GetSpec())
	if runner.Policy != nil {
		f.Merge(policy.Validate(runner.Policy))
	}
	if len(runner.GetProfileBindings()) > 0 {
		f.Add("profile_bindings", "LEGACY_FIELD", "belongs to an older API and must be empty; say what sandboxes may do in policy")
	}
	return f
}

// ValidateIdentity says what a runner lacks that is to be created.
func ValidateIdentity(identity *sandboxv1.RunnerIdentity) []apierr.Violation {
	var f apierr.Violations
	validateIdentity(&f, identity)
	return f
}

func validateIdentity(f *apierr.Violations, identity *sandboxv1.RunnerIdentity) {
	if identity == nil {
		f.Add("identity", "REQUIRED", "is required: runner_id, zone and cluster_id")
		return
	}
	switch {
	case identity.GetRunnerId() == "":
		f.Add("identity.runner_id", "REQUIRED", "is required: a name of your choice, unique in the organization")
	case len(validation.IsDNS1123Label(identity.GetRunnerId())) > 0:
		f.Add("identity.runner_id", "DNS_LABEL", "%q is not a DNS label: use 1 to 63 lower-case letters, digits and \"-\", beginning and ending with a letter or digit", identity.GetRunnerId())
	}
	switch {
	case identity.GetZone() == "":
		f.Add("identity.zone", "REQUIRED", "is required: the zone of the cluster, as sandbar cluster list shows it")
	case len(validation.IsDNS1123Label(strings.ToLower(identity.GetZone()))) > 0:
		f.Add("identity.zone", "ZONE", "%q is not a zone: use up to 63 letters, digits and \"-\"; sandbar cluster list shows the cluster's", identity.GetZone())
	}
	switch {
	case identity.GetClusterId() == "":
		f.Add("identity.cluster_id", "REQUIRED", "is required: the UUID of a registered cluster; sandbar cluster list shows them")
	case uuid.Validate(identity.GetClusterId()) != nil:
		f.Add("identity.cluster_id", "UUID", "%q is not a UUID; sandbar cluster list shows the UUIDs of the registered clusters", identity.GetClusterId())
	}
}

func validateGroup(f *apierr.Violations, group string) {
	if group != "" && (len(group) > validation.LabelValueMaxLength || len(validation.IsValidLabelValue(group)) > 0) {
		f.Add("identity.runner_group_id", "GROUP", "%q is not a group: use up to 63 letters, digits, \"-\", \"_\" and \".\", beginning and ending with a letter or digit", group)
	}
}
