package fleet

import (
	"slices"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/fieldrules"
	"github.com/sandbar-project/sandbar/internal/managedrunner"
)

// maxRequestIDBytes is the contract's limit of a request id.
const maxRequestIDBytes = 128

// validateCreate checks all that can be checked without the store. Paths are
// relative to the managed runner, which is the body of the REST call.
func (m *Management) validateCreate(req *sandboxv1.CreateManagedRunnerRequest) error {
	var f apierr.Violations
	runner := req.GetManagedRunner()
	if len(req.GetRequestId()) > maxRequestIDBytes {
		f.Add("request_id", "REQUEST_ID", "must have at most %d bytes, has %d", maxRequestIDBytes, len(req.GetRequestId()))
	}
	if runner == nil {
		f.Add("managed_runner", "REQUIRED", "is required")
		return f.Err()
	}
	f.Merge(managedrunner.ValidateIdentity(runner.GetIdentity()))
	return m.validateBody(f, runner)
}

// validateUpdate answers the paths to change.
func (m *Management) validateUpdate(req *sandboxv1.UpdateManagedRunnerRequest) ([]string, error) {
	var f apierr.Violations
	if req.GetRunnerId() == "" {
		f.Add("runner_id", "REQUIRED", "is required")
	}
	body := req.GetManagedRunner()
	if body == nil {
		f.Add("managed_runner", "REQUIRED", "is required; a masked field that it leaves out is reset")
	}
	paths, violations := managedrunner.CheckMask(req.GetUpdateMask().GetPaths())
	f = append(f, violations...)
	if id := body.GetIdentity().GetRunnerId(); id != "" && id != req.GetRunnerId() {
		f.Add("identity.runner_id", "RUNNER_ID", "is %q, but the request is for runner %q", id, req.GetRunnerId())
	}
	if slices.Contains(paths, managedrunner.PathPolicy) && body.GetEtag() == "" {
		f.Add("etag", "REQUIRED", "is required to change the policy; send the etag of the policy that was read")
	}
	if len(f) > 0 {
		return nil, f.Err()
	}
	return paths, m.validateBody(f, managedrunner.Selected(body, paths))
}

// validateBody checks what creation and updates have in common.
func (m *Management) validateBody(f apierr.Violations, runner *sandboxv1.ManagedRunner) error {
	f.Merge(managedrunner.Validate(runner))
	rules, err := fieldrules.Check(m.cfg.Rules, runner)
	if err != nil {
		return err
	}
	f.Merge(rules)
	return f.Err()
}
