package fleet

import (
	"slices"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/fieldrules"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// maxRequestIDBytes is the contract's limit of a request id.
const maxRequestIDBytes = 128

// findings collects what is wrong with a request. Paths are relative to the
// managed runner, which is the body of the REST call.
type findings struct{ violations []apierr.Violation }

func (f *findings) add(field, reason, format string, args ...any) {
	f.violations = append(f.violations, apierr.Violated(field, reason, format, args...))
}

// merge adds violations of fields of which nothing is known yet, so that a
// rule that two places check is told once.
func (f *findings) merge(violations []apierr.Violation) {
	for _, violation := range violations {
		known := slices.ContainsFunc(f.violations, func(v apierr.Violation) bool { return v.Field == violation.Field })
		if !known {
			f.violations = append(f.violations, violation)
		}
	}
}

func (f *findings) err() error { return apierr.Invalid(apierr.InvalidRequest, f.violations) }

// validateCreate checks all that can be checked without the store.
func (m *Management) validateCreate(req *sandboxv1.CreateManagedRunnerRequest) error {
	var f findings
	runner := req.GetManagedRunner()
	if len(req.GetRequestId()) > maxRequestIDBytes {
		f.add("request_id", "REQUEST_ID", "must have at most %d bytes, has %d", maxRequestIDBytes, len(req.GetRequestId()))
	}
	if runner == nil {
		f.add("managed_runner", "REQUIRED", "is required")
		return f.err()
	}
	validateIdentity(&f, runner.GetIdentity())
	return m.validateBody(&f, runner)
}

// validateBody checks what creation and updates have in common.
func (m *Management) validateBody(f *findings, runner *sandboxv1.ManagedRunner) error {
	if character, found := fieldrules.Hidden(runner.GetDisplayName()); found {
		f.add("display_name", "HIDDEN_CHARACTER", "%q contains the character %U, which is not seen; leave it out", runner.GetDisplayName(), character)
	}
	validateGroup(f, runner.GetIdentity().GetRunnerGroupId())
	validateSpec(f, runner.GetSpec())
	if runner.Policy != nil {
		f.merge(policy.Validate(runner.Policy))
	}
	if len(runner.GetProfileBindings()) > 0 {
		f.add("profile_bindings", "LEGACY_FIELD", "belongs to an older API and must be empty; say what sandboxes may do in policy")
	}
	rules, err := fieldrules.Check(m.cfg.Rules, runner)
	if err != nil {
		return err
	}
	f.merge(rules)
	return f.err()
}

func validateIdentity(f *findings, identity *sandboxv1.RunnerIdentity) {
	if identity == nil {
		f.add("identity", "REQUIRED", "is required: runner_id, zone and cluster_id")
		return
	}
	switch {
	case identity.GetRunnerId() == "":
		f.add("identity.runner_id", "REQUIRED", "is required: a name of your choice, unique in the organization")
	case len(validation.IsDNS1123Label(identity.GetRunnerId())) > 0:
		f.add("identity.runner_id", "DNS_LABEL", "%q is not a DNS label: use 1 to 63 lower-case letters, digits and \"-\", beginning and ending with a letter or digit", identity.GetRunnerId())
	}
	switch {
	case identity.GetZone() == "":
		f.add("identity.zone", "REQUIRED", "is required: the zone of the cluster, as sandbar cluster list shows it")
	case len(validation.IsDNS1123Label(strings.ToLower(identity.GetZone()))) > 0:
		f.add("identity.zone", "ZONE", "%q is not a zone: use up to 63 letters, digits and \"-\"; sandbar cluster list shows the cluster's", identity.GetZone())
	}
	switch {
	case identity.GetClusterId() == "":
		f.add("identity.cluster_id", "REQUIRED", "is required: the UUID of a registered cluster; sandbar cluster list shows them")
	case uuid.Validate(identity.GetClusterId()) != nil:
		f.add("identity.cluster_id", "UUID", "%q is not a UUID; sandbar cluster list shows the UUIDs of the registered clusters", identity.GetClusterId())
	}
}

func validateGroup(f *findings, group string) {
	if group != "" && (len(group) > validation.LabelValueMaxLength || len(validation.IsValidLabelValue(group)) > 0) {
		f.add("identity.runner_group_id", "GROUP", "%q is not a group: use up to 63 letters, digits, \"-\", \"_\" and \".\", beginning and ending with a letter or digit", group)
	}
}
