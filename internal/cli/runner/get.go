package runner

import (
	"context"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

type getOptions struct {
	Runner  string
	Zone    string
	Cluster string
	Group   string
}

func newGet(call *invocation.Invocation) *cobra.Command {
	options := &getOptions{}
	command := &cobra.Command{
		Use:     "get [RUNNER]",
		Aliases: []string{"list", "ls"},
		Short:   "Show one runner, or list all",
		Example: `  sandbar runner get
  sandbar runner get --zone us-east-01a
  sandbar runner get -o json demo-runner`,
		Args: invocation.Args(cobra.MaximumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 1 {
				options.Runner = args[0]
			}
			return runGet(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Zone, "zone", "", "only those in this zone")
	flags.StringVar(&options.Cluster, "cluster", "", "only the one on this cluster (its id)")
	flags.StringVar(&options.Group, "group", "", "only those in this runner group")
	return command
}

func runGet(ctx context.Context, call *invocation.Invocation, options getOptions) error {
	if options.Runner != "" && options.Zone+options.Cluster+options.Group != "" {
		return invocation.Usagef("--zone, --cluster and --group choose from the list: leave out the runner's id, or them")
	}
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	if options.Runner != "" {
		response, err := server.Runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: options.Runner})
		if err != nil {
			return err
		}
		return call.Print(response, func() output.Table {
			return table([]*sandboxv1.ManagedRunner{response}, call.Now())
		})
	}
	all := &sandboxv1.ListManagedRunnersResponse{}
	request := &sandboxv1.ListManagedRunnersRequest{ClusterId: options.Cluster, Zone: options.Zone, RunnerGroupId: options.Group}
	for {
		response, err := server.Runners.ListManagedRunners(ctx, request)
		if err != nil {
			return err
		}
		all.ManagedRunners = append(all.ManagedRunners, response.GetManagedRunners()...)
		request.PageToken = response.GetNextPageToken()
		if request.GetPageToken() == "" {
			break
		}
	}
	return call.Print(all, func() output.Table { return table(all.GetManagedRunners(), call.Now()) })
}
