// Package cli is the sandbar command: one package or file a verb, each with its
// options in a struct and a function that carries them out.
//
// How answers look is decided in output, what a terminal can do in iostreams,
// how the server is reached in client, how the process ends in invocation.
// Commands know the API and nothing of what is behind it; only serve and dev
// know how to start it, and what it keeps. It must not import storage.
package cli

import (
	"context"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/cli/audit"
	"github.com/sandbar-project/sandbar/internal/cli/cluster"
	"github.com/sandbar-project/sandbar/internal/cli/dev"
	"github.com/sandbar-project/sandbar/internal/cli/image"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/run"
	"github.com/sandbar-project/sandbar/internal/cli/runner"
	"github.com/sandbar-project/sandbar/internal/cli/sandbox"
	"github.com/sandbar-project/sandbar/internal/cli/serve"
	"github.com/sandbar-project/sandbar/internal/cli/token"
)

// Main runs the program and returns its exit code.
func Main() int {
	// With a handler in place, writing to a pipe that nobody reads is an error
	// like any other, and what has been started is tidied up.
	brokenPipes := make(chan os.Signal, 1)
	signal.Notify(brokenPipes, unix.SIGPIPE)
	defer signal.Stop(brokenPipes)

	call := &invocation.Invocation{IO: iostreams.System(os.Getenv), Now: time.Now, Getenv: os.Getenv, Version: Version}
	return Run(context.Background(), call, os.Args[1:])
}

// Run carries out one command line and returns the exit code.
func Run(ctx context.Context, call *invocation.Invocation, args []string) int {
	root := New(call)
	root.SetArgs(args)
	root.SetIn(call.IO.In)
	root.SetOut(call.IO.Out)
	root.SetErr(call.IO.Err)
	command, err := root.ExecuteContextC(ctx)
	report(call.IO, err)
	return invocation.ExitCode(command, err)
}

// New makes the command and all below it.
func New(call *invocation.Invocation) *cobra.Command {
	root := invocation.Group(&cobra.Command{
		Use:   "sandbar",
		Short: "Isolated sandboxes on your own machines",
		Long: `Isolated sandboxes on your own machines, under an administrator's policy.

Where the server is and who is calling comes from the environment:
COREWEAVE_API_ENDPOINT and COREWEAVE_API_TOKEN for managing runners, clusters,
tokens and images; CWSANDBOX_BASE_URL and CWSANDBOX_API_KEY for sandboxes. Each
pair stands in for the other. ` + "`sandbar dev`" + ` writes a file that sets them.

Exit codes: 0 success, 1 failure, 2 wrong usage or request, 3 not authorized,
4 not found, 5 conflict, 6 refused by policy, 7 unavailable: try again. Commands
that run a process in a sandbox end with its code, see their own help.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	})
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return invocation.Usagef("%w\nRun `%s --help` to see the flags", err, command.CommandPath())
	})
	call.AddFlags(root)
	runners := runner.New(call)
	runners.AddCommand(serve.NewRunner())
	root.AddCommand(
		run.New(call),
		sandbox.New(call),
		runners,
		cluster.New(call),
		token.New(call),
		audit.New(call),
		image.New(call),
		serve.New(call),
		serve.NewBackup(call),
		serve.NewRestore(call),
		dev.New(call),
		newVersion(call),
	)
	return root
}
