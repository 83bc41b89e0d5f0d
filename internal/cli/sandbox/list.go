package sandbox

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

type listOptions struct {
	All     bool
	State   string
	Tags    []string
	Runners []string
}

func newList(call *invocation.Invocation) *cobra.Command {
	options := &listOptions{}
	command := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sandboxes, newest first",
		Long:    "List sandboxes, newest first: those that have not ended, or with --all also those that have, as long as the server keeps them.",
		Example: `  sandbar sandbox list
  sandbar sandbox list --all --tag build
  sandbar sandbox list --state failed`,
		Args: invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runList(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&options.All, "all", "a", false, "also those that have ended")
	flags.StringVar(&options.State, "state", "", "only those in this state: "+strings.Join(stateWords(), ", "))
	flags.StringArrayVar(&options.Tags, "tag", nil, "only those with this tag; may be repeated, all must match")
	flags.StringArrayVar(&options.Runners, "runner", nil, "only those on this runner; may be repeated")
	// The flag exists: it was added above.
	_ = command.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateWords(), cobra.ShellCompDirectiveNoFileComp))
	return command
}

func stateWords() []string {
	values := sandboxv1.State(0).Descriptor().Values()
	words := make([]string, 0, values.Len())
	for i := range values.Len() {
		if value := values.Get(i); value.Number() != 0 {
			words = append(words, strings.ToLower(strings.TrimPrefix(string(value.Name()), "STATE_")))
		}
	}
	return words
}

func runList(ctx context.Context, call *invocation.Invocation, options listOptions) error {
	request := &sandboxv1.ListSandboxesRequest{
		ShowTerminated: options.All,
		Tags:           options.Tags,
		RunnerIds:      options.Runners,
	}
	if options.State != "" {
		number, known := sandboxv1.State_value["STATE_"+strings.ToUpper(options.State)]
		if !known || number == 0 {
			return invocation.Usagef("--state %q: it must be one of %s", options.State, strings.Join(stateWords(), ", "))
		}
		request.State = sandboxv1.State(number)
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	all := &sandboxv1.ListSandboxesResponse{}
	for {
		response, err := server.Sandboxes.ListSandboxes(ctx, request)
		if err != nil {
			return err
		}
		all.Sandboxes = append(all.Sandboxes, response.GetSandboxes()...)
		request.PageToken = response.GetNextPageToken()
		if request.GetPageToken() == "" {
			break
		}
	}
	return call.Print(all, func() output.Table { return table(all.GetSandboxes(), call.Now()) })
}
