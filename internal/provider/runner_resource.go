package provider

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// runnerResource is coreweave_sandbox_managed_runner.
type runnerResource struct {
	client *client
	schema schema.Schema
	runner translation
}

var (
	_ resource.ResourceWithConfigure   = (*runnerResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*runnerResource)(nil)
	_ resource.ResourceWithImportState = (*runnerResource)(nil)
)

func newRunnerResource() resource.Resource {
	made := &runnerResource{schema: runnerSchema()}
	made.runner = translation{bridge: runnerBridge(), object: objectType(made.schema)}
	return made
}

func objectType(s schema.Schema) tftypes.Object {
	members := map[string]tftypes.Type{}
	for name, attribute := range s.Attributes {
		members[name] = attribute.GetType().TerraformType(context.Background())
	}
	return tftypes.Object{AttributeTypes: members}
}

func (r *runnerResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandbox_managed_runner"
}

func (r *runnerResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = r.schema
}

func (r *runnerResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	// Terraform also asks before it has configured the provider.
	if req.ProviderData == nil {
		return
	}
	connected, ok := req.ProviderData.(*client)
	if !ok {
		resp.Diagnostics.AddError("Unexpected provider data", fmt.Sprintf("%T is not the provider's client; this is a bug in the provider.", req.ProviderData))
		return
	}
	r.client = connected
}

// Create asks for the runner and does not wait until it is ready.
func (r *runnerResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	wanted, err := r.runner.runner(req.Plan.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid Managed Runner", err.Error())
		return
	}
	id, err := uuid.NewRandom()
	if err != nil {
		resp.Diagnostics.AddError("Unable to Generate Request ID", err.Error())
		return
	}
	created, err := r.client.runners.CreateManagedRunner(ctx, &sandboxv1.CreateManagedRunnerRequest{
		ManagedRunner: wanted, RequestId: id.String(),
	})
	if err != nil {
		resp.Diagnostics.Append(r.explain(err)...)
		if connect.CodeOf(err) == connect.CodeAlreadyExists {
			resp.Diagnostics.AddWarning("The runner can be imported",
				fmt.Sprintf("To manage a runner that exists already: terraform import coreweave_sandbox_managed_runner.NAME %q", wanted.GetIdentity().GetRunnerId()))
		}
		return
	}
	r.keep(created, wanted.GetIdentity().GetRunnerId(), req.Plan.Raw, &resp.State.Raw, &resp.Diagnostics)
}

func (r *runnerResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	id := textOf(req.State.Raw, "runner_id")
	got, err := r.client.runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: id})
	if err != nil && connect.CodeOf(err) == connect.CodeNotFound {
		resp.State.RemoveResource(ctx)
		return
	}
	if err != nil {
		resp.Diagnostics.Append(r.explain(err)...)
		return
	}
	if resp.Diagnostics.Append(checkResponse(got, id)...); resp.Diagnostics.HasError() {
		return
	}
	state, err := r.runner.stored(got, req.State.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid Managed Runner Response", err.Error())
		return
	}
	resp.State.Raw = state
}

// Update writes the fields that differ between state and plan; when none does
// it only reads.
func (r *runnerResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	update, err := r.updateRequest(req.State.Raw, req.Plan.Raw)
	if err != nil {
		resp.Diagnostics.AddError("Invalid Managed Runner", err.Error())
		return
	}
	var answer *sandboxv1.ManagedRunner
	if len(update.GetUpdateMask().GetPaths()) == 0 {
		answer, err = r.client.runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: update.GetRunnerId()})
	} else {
		answer, err = r.client.runners.UpdateManagedRunner(ctx, update)
	}
	if err != nil {
		resp.Diagnostics.Append(r.explain(err)...)
		return
	}
	r.keep(answer, update.GetRunnerId(), req.Plan.Raw, &resp.State.Raw, &resp.Diagnostics)
}

// updateRequest is the request that turns state into plan. A policy is written
// with the etag that the plan was made against.
func (r *runnerResource) updateRequest(state, plan tftypes.Value) (*sandboxv1.UpdateManagedRunnerRequest, error) {
	stored, err := r.runner.runner(state)
	if err != nil {
		return nil, err
	}
	planned, err := r.runner.runner(plan)
	if err != nil {
		return nil, err
	}
	mask := updateMask(stored, planned, child(plan, "spec").IsKnown())
	for _, masked := range mask {
		if masked != policyPath {
			continue
		}
		planned.Etag = textOf(state, "etag")
		if planned.GetEtag() == "" {
			return nil, fmt.Errorf("the policy differs, but the state has no etag of it, so a change made elsewhere could be overwritten; run terraform refresh and plan again")
		}
	}
	return &sandboxv1.UpdateManagedRunnerRequest{
		RunnerId: textOf(state, "runner_id"), ManagedRunner: planned, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
	}, nil
}

// keep checks what the server answered to a write, and stores it.
func (r *runnerResource) keep(answer *sandboxv1.ManagedRunner, id string, plan tftypes.Value, state *tftypes.Value, diags *diag.Diagnostics) {
	if diags.Append(checkResponse(answer, id)...); diags.HasError() {
		return
	}
	kept, differing, err := r.runner.applied(answer, plan)
	if err != nil {
		diags.AddError("Invalid Managed Runner Response", err.Error())
		return
	}
	if len(differing) > 0 {
		diags.AddWarning("The server holds other settings than planned",
			fmt.Sprintf("It answered with other values of %s than this configuration has. The next plan shows the difference.", strings.Join(differing, ", ")))
	}
	*state = kept
}

// checkResponse refuses answers that cannot be stored.
func checkResponse(answer *sandboxv1.ManagedRunner, id string) diag.Diagnostics {
	var diags diag.Diagnostics
	switch got := answer.GetIdentity().GetRunnerId(); {
	case got == "":
		diags.AddError("Invalid Managed Runner Response",
			fmt.Sprintf("The server answered without the runner's identity. If the runner %q exists now, import it.", id))
	case got != id:
		diags.AddError("Invalid Managed Runner Response",
			fmt.Sprintf("The server answered with runner %q instead of %q.", got, id))
	case answer.GetPolicy() == nil || answer.GetSpec() == nil:
		diags.AddError("Invalid Managed Runner Response",
			"The server answered without the runner's policy or spec. A server that implements all of the v1 managed runner API is needed.")
	}
	return diags
}

// ImportState takes a runner's id, in the organization of the token.
func (r *runnerResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	id := strings.TrimSpace(req.ID)
	if id == "" {
		resp.Diagnostics.AddError("Invalid Import ID", "The import ID is the runner's id, and must not be empty.")
		return
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), id)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("runner_id"), id)...)
}

// textOf is a text attribute of an object; empty when it has none.
func textOf(object tftypes.Value, name string) string {
	var text string
	value := child(object, name)
	if value.Type() == nil || !value.IsKnown() || value.IsNull() || value.As(&text) != nil {
		return ""
	}
	return text
}
