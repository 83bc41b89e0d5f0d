package serve

import (
	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/runner"
)

// NewRunner makes `sandbar runner serve`, which an installer starts; people
// have no use for it.
func NewRunner() *cobra.Command {
	var config string
	command := &cobra.Command{
		Use:    "serve --config FILE",
		Short:  "Run a runner",
		Hidden: true,
		Args:   invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if config == "" {
				return invocation.Usagef("--config is missing: it names the runner's configuration file")
			}
			return runner.RunFromFile(command.Context(), config)
		},
	}
	command.Flags().StringVar(&config, "config", "", "the runner's configuration, in JSON (required)")
	return command
}
