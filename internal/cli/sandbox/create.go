package sandbox

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/lifecycle"
	"github.com/sandbar-project/sandbar/internal/cli/output"
	"github.com/sandbar-project/sandbar/internal/cli/spec"
)

type createOptions struct {
	Image   string
	Command []string
	Spec    spec.Flags
	Wait    bool
	// Quiet prints the id alone.
	Quiet bool
}

func newCreate(call *invocation.Invocation) *cobra.Command {
	options := &createOptions{}
	command := &cobra.Command{
		Use:   "create IMAGE [FLAG…] [--] [COMMAND [ARG…]]",
		Short: "Create a sandbox and leave it running",
		Long: `Create a sandbox and leave it running. COMMAND is its main process; without one
the image's own command is. The sandbox ends when its main process ends, when
its lifetime is over, or when it is deleted.`,
		Example: `  sandbar sandbox create python:3.11 -- sleep infinity
  sandbar sandbox create --tag build --lifetime 1h python:3.11 -- python3 -m http.server 8080
  ID=$(sandbar sandbox create -q busybox:1 -- sleep 600)`,
		Args: invocation.Args(cobra.MinimumNArgs(1)),
		RunE: invocation.WithCommand(func(command *cobra.Command, image string, words []string) error {
			options.Image, options.Command = image, words
			return runCreate(command.Context(), call, *options)
		}),
	}
	flags := command.Flags()
	flags.SetInterspersed(false)
	options.Spec.Add(flags)
	flags.BoolVar(&options.Wait, "wait", true, "wait until the sandbox runs")
	flags.BoolVarP(&options.Quiet, "quiet", "q", false, "print the sandbox's id alone")
	return command
}

func runCreate(ctx context.Context, call *invocation.Invocation, options createOptions) error {
	wanted, err := options.Spec.Build(options.Image, options.Command, call.Getenv)
	if err != nil {
		return err
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	sandboxes := lifecycle.Sandboxes{API: server.Sandboxes, Wait: attach.Sleep}
	sandbox, err := sandboxes.Create(ctx, wanted)
	if err != nil {
		return err
	}
	if options.Wait {
		progress := call.IO.Progress(call.Now)
		defer progress.Done()
		sandbox, err = sandboxes.Running(ctx, sandbox, func(status *sandboxv1.SandboxStatus) {
			progress.Show("starting " + options.Image + " (" + output.Word(status.GetState(), "STATE_") + ")")
		})
		if err != nil {
			return err
		}
		progress.Done()
	}
	if options.Quiet {
		fmt.Fprintln(call.IO.Out, sandbox.GetSandboxId())
		return nil
	}
	return call.Print(sandbox, func() output.Table { return table([]*sandboxv1.Sandbox{sandbox}, call.Now()) })
}
