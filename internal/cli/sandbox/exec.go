package sandbox

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/lifecycle"
	"github.com/sandbar-project/sandbar/internal/cli/spec"
)

type execOptions struct {
	Sandbox string
	Command []string
	Env     []string
	WorkDir string
	Stdin   bool
	TTY     bool
}

func newExec(call *invocation.Invocation) *cobra.Command {
	options := &execOptions{}
	command := &cobra.Command{
		Use:   "exec SANDBOX [FLAG…] [--] COMMAND [ARG…]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a running sandbox and end with the command's exit code. When
this program ends, the command and all its children end too.

When both standard input and standard output are terminals, -i and -t are on,
unless you say otherwise (-t=false). Flags stand before or after SANDBOX; what
follows COMMAND is COMMAND's own.

Exit codes: that of the command; 128+n if signal n ended it; 126 and 127 if it
could not be started or was not found. If the server refuses the request the
codes are those of every command (see sandbar --help); if Sandbar fails
otherwise, 125, and it is then unknown how the command ended. The reason is on
standard error.`,
		Example: `  sandbar sandbox exec $ID -- python3 --version
  sandbar sandbox exec $ID -- bash
  sandbar sandbox exec -w /src -e CI=true $ID -- make test
  echo 'print(1)' | sandbar sandbox exec -i $ID -- python3 -`,
		Args: invocation.Args(cobra.MinimumNArgs(2)),
		RunE: invocation.WithCommand(func(command *cobra.Command, sandbox string, words []string) error {
			options.Sandbox, options.Command = sandbox, words
			if len(options.Command) == 0 {
				return invocation.Usagef("there is no command to run\nUsage: %s", command.UseLine())
			}
			terminal := call.IO.InIsTerminal() && call.IO.OutIsTerminal()
			if !command.Flags().Changed("interactive") {
				options.Stdin = terminal
			}
			if !command.Flags().Changed("tty") {
				options.TTY = terminal
			}
			return runExec(command.Context(), call, *options)
		}),
	}
	flags := command.Flags()
	flags.SetInterspersed(false)
	flags.BoolVarP(&options.Stdin, "interactive", "i", false, "pass standard input to the command")
	flags.BoolVarP(&options.TTY, "tty", "t", false, "give the command a terminal")
	flags.StringArrayVarP(&options.Env, "env", "e", nil, "environment variable, NAME=value, or NAME to pass on yours; may be repeated")
	flags.StringVarP(&options.WorkDir, "workdir", "w", "", "directory to run the command in (needs /bin/sh in the image)")
	return invocation.PassesCode(command)
}

func runExec(ctx context.Context, call *invocation.Invocation, options execOptions) error {
	env, err := spec.Environment(options.Env, call.Getenv)
	if err != nil {
		return err
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	sandboxes := lifecycle.Sandboxes{API: server.Sandboxes, Wait: attach.Sleep}
	code, err := sandboxes.Exec(ctx, call.IO, attach.ExecOptions{
		SandboxID: options.Sandbox,
		Command:   inDirectory(options.WorkDir, options.Command),
		Env:       env,
		Stdin:     options.Stdin,
		TTY:       options.TTY,
	})
	var interrupted *attach.InterruptedError
	switch {
	case errors.As(err, &interrupted):
		return invocation.Accepted(err)
	case err == nil && code != 0:
		return invocation.ExitError{Code: code}
	}
	return err
}

// inDirectory wraps a command so that it runs in a directory; the contract has
// no field for that. Directory and command are arguments, never shell text.
func inDirectory(directory string, command []string) []string {
	if directory == "" {
		return command
	}
	return append([]string{"/bin/sh", "-c", `cd -- "$1" || exit 126; shift; exec "$@"`, "sh", directory}, command...)
}
