package sandbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/lifecycle"
)

type deleteOptions struct {
	Sandboxes    []string
	Grace        time.Duration
	Wait         bool
	AllowMissing bool
}

func newDelete(call *invocation.Invocation) *cobra.Command {
	options := &deleteOptions{}
	command := &cobra.Command{
		Use:     "delete SANDBOX…",
		Aliases: []string{"rm"},
		Short:   "End sandboxes",
		Long: `End sandboxes. Each main process gets SIGTERM and, after the grace, SIGKILL.
All are tried, whatever happens to one; if any could not be ended, the exit code
is that of the first failure.`,
		Example: `  sandbar sandbox delete $ID
  sandbar sandbox delete --grace 30s $ID $OTHER`,
		Args: invocation.Args(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			options.Sandboxes = args
			return runDelete(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.DurationVar(&options.Grace, "grace", 10*time.Second, "what the main process gets to end by itself; 0s kills it at once")
	flags.BoolVar(&options.Wait, "wait", true, "wait until they have ended")
	flags.BoolVar(&options.AllowMissing, "allow-missing", false, "succeed for sandboxes that do not exist")
	return command
}

func runDelete(ctx context.Context, call *invocation.Invocation, options deleteOptions) error {
	grace, err := graceSeconds(options.Grace)
	if err != nil {
		return err
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	sandboxes := lifecycle.Sandboxes{API: server.Sandboxes, Wait: attach.Sleep}
	return call.Each(options.Sandboxes, func(id string) (string, error) {
		response, err := server.Sandboxes.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{
			SandboxId: id, GracePeriodSeconds: grace, AllowMissing: options.AllowMissing,
		})
		if err != nil {
			return "", err
		}
		if response.GetSandbox() == nil {
			return "was not there", nil
		}
		if !options.Wait {
			return "is ending", nil
		}
		if _, err := sandboxes.Gone(ctx, response.GetSandbox()); err != nil {
			return "", fmt.Errorf("wait for its end: %w", err)
		}
		return "has ended", nil
	})
}

func graceSeconds(grace time.Duration) (int32, error) {
	seconds := (grace + time.Second - 1) / time.Second
	if grace < 0 || seconds > math.MaxInt32 {
		return 0, invocation.Usagef("--grace %s: it must be zero or more seconds", grace)
	}
	return int32(seconds), nil
}
