package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// ModifyPlan settles what depends on the whole plan: the release channel's
// default, what happens to a spec that is not configured, and whether observed
// attributes can change.
func (r *runnerResource) ModifyPlan(_ context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	plan, err := settle(req.Config.Raw, req.State.Raw, req.Plan.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Unable to plan the managed runner", err.Error())
		return
	}
	resp.Plan.Raw = plan
}

func settle(config, state, plan tftypes.Value) (tftypes.Value, error) {
	spec, err := settleSpec(child(config, "spec"), child(state, "spec"), child(plan, "spec"))
	if err != nil {
		return plan, err
	}
	plan, err = withChildren(plan, map[string]tftypes.Value{"spec": spec})
	if err != nil || state.IsNull() {
		return plan, err
	}
	// What the server observes changes on its own. It is left open when this
	// plan changes the runner, and is no reason for a plan otherwise.
	changes := false
	for _, name := range configured() {
		changes = changes || !child(plan, name).Equal(child(state, name))
	}
	settled := map[string]tftypes.Value{}
	for _, name := range observed() {
		value := child(state, name)
		if changes {
			value = tftypes.NewValue(value.Type(), tftypes.UnknownValue)
		}
		settled[name] = value
	}
	return withChildren(plan, settled)
}

// settleSpec keeps the stored spec when none is configured, and sets the
// default of the release channel when one is. It is no schema default, because
// that would also change a spec that is not configured.
func settleSpec(config, state, plan tftypes.Value) (tftypes.Value, error) {
	if !config.IsKnown() {
		return plan, nil
	}
	if config.IsNull() {
		if state.Type() != nil && !state.IsNull() {
			return state, nil
		}
		return plan, nil
	}
	if !child(config, "release_channel").IsNull() {
		return plan, nil
	}
	return withChildren(plan, map[string]tftypes.Value{
		"release_channel": tftypes.NewValue(tftypes.String, sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE.String()),
	})
}
