package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
)

type logsOptions struct {
	Sandbox    string
	Follow     bool
	Tail       int32
	Since      string
	Timestamps bool
}

func newLogs(call *invocation.Invocation) *cobra.Command {
	options := &logsOptions{}
	command := &cobra.Command{
		Use:   "logs SANDBOX",
		Short: "Show what a sandbox's main process writes",
		Long: `Show what the main process of a running sandbox has written, both outputs as
one. Commands that are run beside it with exec do not show up here. With -f go
on until the process ends; if the connection breaks meanwhile, it is taken up
again where it broke.`,
		Example: `  sandbar sandbox logs $ID
  sandbar sandbox logs -f --tail 20 $ID
  sandbar sandbox logs --since 10m --timestamps $ID`,
		Args: invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			options.Sandbox = args[0]
			return runLogs(command.Context(), call, *options, attach.Sleep)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&options.Follow, "follow", "f", false, "go on until the main process ends")
	flags.Int32Var(&options.Tail, "tail", 0, "only the last lines; 0 is all that is kept")
	flags.StringVar(&options.Since, "since", "", "only what came after: an age like 10m, or a time like 2026-01-31T08:00:00Z")
	flags.BoolVar(&options.Timestamps, "timestamps", false, "put its time before each line")
	return command
}

func runLogs(ctx context.Context, call *invocation.Invocation, options logsOptions, wait attach.Wait) error {
	if options.Tail < 0 {
		return invocation.Usagef("--tail %d: it must not be negative", options.Tail)
	}
	since, err := parseSince(options.Since, call.Now())
	if err != nil {
		return err
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	return attach.Logs(ctx, server.Sandboxes, &sandboxv1.StreamLogsRequest{
		SandboxId:  options.Sandbox,
		Follow:     options.Follow,
		TailLines:  options.Tail,
		SinceTime:  since,
		Timestamps: options.Timestamps,
	}, call.IO.Out, wait)
}

func parseSince(text string, now time.Time) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return timestamppb.New(now.Add(-age)), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, invocation.Usagef("--since %q: it must be an age like 10m, or a time like 2026-01-31T08:00:00Z", text)
	}
	return timestamppb.New(at), nil
}
