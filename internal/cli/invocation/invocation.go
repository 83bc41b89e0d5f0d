// Package invocation is what every command is given: streams, clock,
// environment, output format and a way to reach the server; and the errors
// through which it says how the process ends.
package invocation

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/output"
	"google.golang.org/protobuf/proto"
)

// Invocation is one call of the program.
type Invocation struct {
	IO     *iostreams.IO
	Now    func() time.Time
	Getenv func(string) string
	// Version of this program.
	Version string

	// What the flags of the root command say.
	Format     output.Format
	Connection client.Options
}

// AddFlags puts the flags that all commands share on the root command.
func (i *Invocation) AddFlags(root *cobra.Command) {
	i.Format = output.FormatTable
	flags := root.PersistentFlags()
	flags.VarP(&i.Format, "output", "o", "how to print the answer")
	flags.StringVar(&i.Connection.Endpoint, "endpoint", "",
		"URL of the server (default $"+client.EndpointVariable+" or $"+client.SandboxEndpointVariable+")")
	flags.StringVar(&i.Connection.TokenFile, "token-file", "",
		"file that holds the API token (default $"+client.TokenVariable+" or $"+client.SandboxTokenVariable+")")
	flags.StringVar(&i.Connection.CACertFile, "ca-cert", "",
		"file of certificates to trust besides the system's, in PEM")
	// The flag exists: it was added four lines above.
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.Formats(), cobra.ShellCompDirectiveNoFileComp))
}

// Client connects to the server.
func (i *Invocation) Client(surface client.Surface) (*client.Client, error) {
	options := i.Connection
	options.Getenv = i.Getenv
	c, err := client.New(options, surface)
	if err != nil {
		return nil, Usagef("%w", err)
	}
	return c, nil
}

// Print writes a command's answer.
func (i *Invocation) Print(message proto.Message, table func() output.Table) error {
	return output.Print(i.IO.Out, i.Format, message, table)
}
