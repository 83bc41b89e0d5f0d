package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Delete takes the runner away and waits until it is gone: a cluster has one
// runner at most, so a replacement must not begin earlier.
func (r *runnerResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	id := textOf(req.State.Raw, "runner_id")
	_, err := r.client.runners.DeleteManagedRunner(ctx, &sandboxv1.DeleteManagedRunnerRequest{RunnerId: id, AllowMissing: true})
	if err != nil && connect.CodeOf(err) == connect.CodeNotFound {
		return
	}
	if err == nil {
		err = r.awaitGone(ctx, id)
	}
	switch still := (*notGoneError)(nil); {
	case err == nil:
	case errors.As(err, &still):
		resp.Diagnostics.AddError("Managed Runner Deletion Incomplete", still.Error())
	default:
		resp.Diagnostics.Append(r.explain(err)...)
	}
}

// notGoneError says that a runner outlived the wait for its deletion.
type notGoneError struct {
	id     string
	waited time.Duration
	status sandboxv1.RunnerInstallStatus
}

func (e *notGoneError) Error() string {
	return fmt.Sprintf("The runner %q is still there after %s, with status %s. Its deletion goes on; run terraform destroy again to wait for its end.",
		e.id, e.waited, e.status)
}

// awaitGone looks at once and then at every tick, until the server no longer
// knows the runner.
func (r *runnerResource) awaitGone(ctx context.Context, id string) error {
	limit := time.NewTimer(r.client.pace.DeletionLimit)
	defer limit.Stop()
	tick := time.NewTicker(r.client.pace.DeletionPoll)
	defer tick.Stop()
	for {
		got, err := r.client.runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: id})
		if err != nil {
			if connect.CodeOf(err) == connect.CodeNotFound {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return &notGoneError{id: id, waited: r.client.pace.DeletionLimit, status: got.GetInstallStatus()}
		case <-tick.C:
		}
	}
}
