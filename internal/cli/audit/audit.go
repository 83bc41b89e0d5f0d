// Package audit is `sandbar audit`: who changed what.
package audit

import (
	"context"

	"github.com/spf13/cobra"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// New makes the command and all below it.
func New(call *invocation.Invocation) *cobra.Command {
	command := invocation.Group(&cobra.Command{
		Use:   "audit",
		Short: "Look at who changed what",
	})
	command.AddCommand(newList(call))
	return command
}

func newList(call *invocation.Invocation) *cobra.Command {
	request := &adminv1.ListAuditEntriesRequest{}
	command := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List changes of runners, clusters and tokens, the newest first",
		Long: `List changes of runners, clusters and tokens, the newest first: by whom, from
where, with which program. -o json also shows digests of what was declared before
and after, and details such as the update mask.`,
		Example: `  sandbar audit list
  sandbar audit list --resource demo-runner --limit 10 -o json`,
		Args: invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runList(command.Context(), call, request)
		},
	}
	flags := command.Flags()
	flags.StringVar(&request.Resource, "resource", "", "only changes of the runner, cluster or token with that id")
	flags.StringVar(&request.UserId, "user", "", "only changes by that user")
	flags.Int32Var(&request.PageSize, "limit", 50, "how many at most, up to 1000")
	flags.StringVar(&request.PageToken, "page-token", "", "go on where another list ended: its nextPageToken in -o json")
	return command
}

func runList(ctx context.Context, call *invocation.Invocation, request *adminv1.ListAuditEntriesRequest) error {
	if request.GetPageSize() < 1 {
		return invocation.Usagef("--limit %d: it must be 1 or more", request.GetPageSize())
	}
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Audit.ListAuditEntries(ctx, request)
	if err != nil {
		return err
	}
	return call.Print(response, func() output.Table {
		table := output.Table{Headings: []string{"TIME", "USER", "ACTION", "RESOURCE", "FROM", "CLIENT"}}
		for _, entry := range response.GetAuditEntries() {
			table.Rows = append(table.Rows, []string{
				output.Time(entry.GetCreateTime()), output.OrUnset(entry.GetUserId()), entry.GetAction(), entry.GetResource(),
				output.OrUnset(entry.GetSourceAddress()), output.OrUnset(entry.GetClient()),
			})
		}
		return table
	})
}
