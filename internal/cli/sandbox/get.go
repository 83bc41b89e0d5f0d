package sandbox

import (
	"context"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

func newGet(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "get SANDBOX",
		Short: "Show one sandbox",
		Example: `  sandbar sandbox get 0b9b6a3e-1f0e-4f0e-9a55-6d3c6c1f8f6a
  sandbar sandbox get -o yaml 0b9b6a3e-1f0e-4f0e-9a55-6d3c6c1f8f6a`,
		Args: invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runGet(command.Context(), call, args[0])
		},
	}
}

func runGet(ctx context.Context, call *invocation.Invocation, id string) error {
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Sandboxes.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil {
		return err
	}
	return call.Print(response, func() output.Table {
		return table([]*sandboxv1.Sandbox{response}, call.Now())
	})
}
