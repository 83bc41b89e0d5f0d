// Package sandbox is `sandbar sandbox`: what can be done with sandboxes that
// live longer than one command.
package sandbox

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// New makes the command and all below it.
func New(call *invocation.Invocation) *cobra.Command {
	command := invocation.Group(&cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sandboxes", "sb"},
		Short:   "Create sandboxes and work in them",
	})
	command.AddCommand(newCreate(call), newGet(call), newList(call), newExec(call), newLogs(call), newCopy(call), newDelete(call))
	return command
}

func table(sandboxes []*sandboxv1.Sandbox, now time.Time) output.Table {
	t := output.Table{Headings: []string{"SANDBOX", "STATE", "IMAGE", "RUNNER", "AGE", "REASON"}}
	for _, sandbox := range sandboxes {
		status := sandbox.GetStatus()
		image := ""
		if containers := sandbox.GetSpec().GetContainers(); len(containers) > 0 {
			image = containers[0].GetImage()
		}
		t.Rows = append(t.Rows, []string{
			sandbox.GetSandboxId(),
			output.Word(status.GetState(), "STATE_"),
			output.OrUnset(image),
			output.OrUnset(status.GetRunnerId()),
			output.Age(status.GetCreateTime(), now),
			output.OrUnset(reason(status)),
		})
	}
	return t
}

// reason says why a sandbox is in its state. The end of a main process by
// itself has none but its exit code.
func reason(status *sandboxv1.SandboxStatus) string {
	if status.GetStateReason() == "" && status.ExitCode != nil {
		return fmt.Sprintf("exited with code %d", status.GetExitCode())
	}
	return status.GetStateReason()
}
