package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/cli/invocation"
)

// Version is set by the linker when a release is built.
var Version = "devel"

func newVersion(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: `  sandbar version`,
		Args:    invocation.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(call.IO.Out, "sandbar %s %s %s/%s\n", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
