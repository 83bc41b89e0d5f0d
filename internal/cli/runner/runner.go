// Package runner is `sandbar runner`: managed runners, as declared and as
// observed.
package runner

import (
	"time"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// New makes the command and all below it.
func New(call *invocation.Invocation) *cobra.Command {
	command := invocation.Group(&cobra.Command{
		Use:     "runner",
		Aliases: []string{"runners"},
		Short:   "Look at managed runners and delete them",
		Long: `Look at managed runners and delete them. Runners are declared with Terraform or
through the API; the commands here show what became of it.`,
	})
	command.AddCommand(newGet(call), newDescribe(call), newDelete(call))
	return command
}

func table(runners []*sandboxv1.ManagedRunner, now time.Time) output.Table {
	t := output.Table{Headings: []string{"RUNNER", "INSTALL", "CONN", "REVISION", "ZONE", "CLUSTER", "AGE"}}
	for _, runner := range runners {
		t.Rows = append(t.Rows, []string{
			runner.GetIdentity().GetRunnerId(),
			output.Word(runner.GetInstallStatus(), installPrefix),
			output.Word(runner.GetConnectionStatus(), connectionPrefix),
			revision(runner),
			output.OrUnset(runner.GetIdentity().GetZone()),
			cluster(runner.GetIdentity()),
			output.Age(runner.GetCreateTime(), now),
		})
	}
	return t
}
