// Package run is `sandbar run`: one command in a new sandbox that is removed
// when the command ends, whatever ends it.
package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/lifecycle"
	"github.com/sandbar-project/sandbar/internal/cli/output"
	"github.com/sandbar-project/sandbar/internal/cli/spec"
)

// keepAlive is the main process of a sandbox that waits for commands. It is
// silent and ends at once on SIGTERM.
var keepAlive = []string{"/bin/sh", "-c", `trap "exit 0" TERM INT; sleep infinity & wait`}

// graceSeconds is what a main process gets to end by itself.
const graceSeconds = 10

// How long the end of a sandbox is waited for: usually, and after a second
// Ctrl-C.
const (
	removeTimeout = 45 * time.Second
	forceTimeout  = 5 * time.Second
)

// interruptedCode is what shells report for a program that Ctrl-C has ended.
const interruptedCode = 130

// Options are what the command line says.
type Options struct {
	Image   string
	Command []string
	Spec    spec.Flags
	Stdin   bool
	TTY     bool
	// Main runs the command as the main process instead of beside one.
	Main   bool
	Remove bool
}

// New makes the command.
func New(call *invocation.Invocation) *cobra.Command {
	options := &Options{}
	command := &cobra.Command{
		Use:   "run IMAGE [FLAG…] [--] [COMMAND [ARG…]]",
		Short: "Run a command in a new sandbox, then remove the sandbox",
		Long: `Run a command in a new sandbox and end with the command's exit code. The
sandbox is removed when the command ends, and also when you press Ctrl-C or
this program is told to end; a second Ctrl-C does not wait for the sandbox to
end by itself.

With a COMMAND, the sandbox's main process is a shell that only waits, and the
command runs beside it: standard input, standard output, standard error, the
terminal and the exit code are exactly the command's own. This needs /bin/sh in
the image.

Without a COMMAND the image's own command is the main process; with --main,
COMMAND is. This needs nothing in the image. The main process has no input and
no terminal, its two outputs arrive as one, on standard output, and what it
writes in the moment before it ends may be lost.

When both standard input and standard output are terminals, -i and -t are on,
unless you say otherwise (-t=false). Flags stand before or after IMAGE; what
follows COMMAND is COMMAND's own.

Exit codes: that of the command; 128+n if signal n ended it, so 137 if the
sandbox ended first, for want of time or memory or because somebody deleted it;
126 and 127 if it could not be started or was not found; 130 after Ctrl-C. If
the server refuses the request the codes are those of every command (see sandbar
--help); if Sandbar fails otherwise, 125. The reason is on standard error.`,
		Example: `  sandbar run python:3.11 -- python3 -c 'print(2 + 2)'
  sandbar run python:3.11 -- bash
  tar c src | sandbar run -i python:3.11 -- sh -c 'tar x && python3 -m compileall src'
  sandbar run --cpu 2 --memory 4Gi --egress any:443 python:3.11 -- pip download numpy
  sandbar run --main gcr.io/distroless/static -- /app`,
		Args: invocation.Args(cobra.MinimumNArgs(1)),
		RunE: invocation.WithCommand(func(command *cobra.Command, image string, words []string) error {
			options.Image, options.Command = image, words
			terminal := call.IO.InIsTerminal() && call.IO.OutIsTerminal() && len(options.Command) > 0 && !options.Main
			if !command.Flags().Changed("interactive") {
				options.Stdin = terminal
			}
			if !command.Flags().Changed("tty") {
				options.TTY = terminal
			}
			return Run(command.Context(), call, *options)
		}),
	}
	flags := command.Flags()
	// What follows the command is the command's, also without --.
	flags.SetInterspersed(false)
	options.Spec.Add(flags)
	flags.BoolVarP(&options.Stdin, "interactive", "i", false, "pass standard input to the command")
	flags.BoolVarP(&options.TTY, "tty", "t", false, "give the command a terminal")
	flags.BoolVar(&options.Main, "main", false, "run the command as the sandbox's main process")
	flags.BoolVar(&options.Remove, "rm", true, "remove the sandbox when the command ends")
	return invocation.PassesCode(command)
}

// Run carries the command out. Its ExitError is the command's exit code.
func Run(ctx context.Context, call *invocation.Invocation, options Options) error {
	asMain := options.Main || len(options.Command) == 0
	if asMain && (options.Stdin || options.TTY) {
		return invocation.Usagef("a main process has neither input nor terminal: leave out -i and -t, or give a command to run beside it (sandbar run -it IMAGE -- /bin/sh)")
	}
	main := keepAlive
	if asMain {
		main = options.Command
	}
	wanted, err := options.Spec.Build(options.Image, main, call.Getenv)
	if err != nil {
		return err
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()

	runner := &runner{
		call:      call,
		options:   options,
		asMain:    asMain,
		sandboxes: lifecycle.Sandboxes{API: server.Sandboxes, Wait: attach.Sleep},
	}
	return runner.run(ctx, wanted)
}

type runner struct {
	call      *invocation.Invocation
	options   Options
	asMain    bool
	sandboxes lifecycle.Sandboxes
}

func (r *runner) run(ctx context.Context, wanted *sandboxv1.SandboxSpec) error {
	interrupts := iostreams.CatchInterrupts(ctx)
	defer interrupts.Stop()
	progress := r.call.IO.Progress(r.call.Now)
	defer progress.Done()

	// To give up on the answer could leave a sandbox behind that nobody knows:
	// the first signal is heeded after the answer has come.
	sandbox, err := r.sandboxes.Create(interrupts.Cleanup, wanted)
	if err != nil {
		return err
	}
	follow := r.followExec
	if r.asMain {
		follow = r.followMain
	}
	code, err := follow(interrupts.Work, sandbox, progress)
	switch {
	case interrupts.Work.Err() != nil:
		err = invocation.ExitError{Code: interruptedCode}
	case err == nil && code != 0:
		err = invocation.ExitError{Code: code}
	default:
		err = invocation.Accepted(err)
	}
	return r.finish(interrupts.Cleanup, sandbox.GetSandboxId(), err)
}

// finish removes the sandbox and answers with what the program ends with. The
// end of gentle means that the main process is not to be waited for.
func (r *runner) finish(gentle context.Context, id string, result error) error {
	if !r.options.Remove {
		fmt.Fprintf(r.call.IO.Err, "sandbox %s was kept; remove it with: sandbar sandbox delete %s\n", id, id)
		return result
	}
	grace := int32(0)
	if r.asMain {
		grace = graceSeconds
	}
	bounded, cancel := context.WithTimeout(gentle, removeTimeout)
	defer cancel()
	err := r.sandboxes.Remove(bounded, id, grace)
	if err != nil && gentle.Err() != nil {
		forced, cancel := context.WithTimeout(context.WithoutCancel(gentle), forceTimeout)
		defer cancel()
		err = r.sandboxes.Remove(forced, id, 0)
	}
	if err == nil {
		return result
	}
	err = invocation.Accepted(fmt.Errorf("remove sandbox %s: %w; it may still run: sandbar sandbox delete %s", id, err, id))
	var exit invocation.ExitError
	if result == nil || errors.As(result, &exit) {
		return err
	}
	return errors.Join(result, err)
}

func (r *runner) running(ctx context.Context, sandbox *sandboxv1.Sandbox, progress *iostreams.Progress) (*sandboxv1.Sandbox, error) {
	defer progress.Done()
	return r.sandboxes.Running(ctx, sandbox, func(status *sandboxv1.SandboxStatus) {
		what := status.GetStateReason()
		if what == "" {
			what = "starting " + r.options.Image + " (" + output.Word(status.GetState(), "STATE_") + ")"
		}
		progress.Show(what)
	})
}

func (r *runner) followExec(ctx context.Context, sandbox *sandboxv1.Sandbox, progress *iostreams.Progress) (int, error) {
	sandbox, err := r.running(ctx, sandbox, progress)
	var ended *lifecycle.EndedError
	if errors.As(err, &ended) {
		return 0, fmt.Errorf("%w; if the image has no /bin/sh, run the command as the main process with --main", err)
	}
	if err != nil {
		return 0, err
	}
	return r.sandboxes.Exec(ctx, r.call.IO, attach.ExecOptions{
		SandboxID: sandbox.GetSandboxId(),
		Command:   r.options.Command,
		Stdin:     r.options.Stdin,
		TTY:       r.options.TTY,
	})
}

func (r *runner) followMain(ctx context.Context, sandbox *sandboxv1.Sandbox, progress *iostreams.Progress) (int, error) {
	_, err := r.running(ctx, sandbox, progress)
	var ended *lifecycle.EndedError
	switch {
	case errors.As(err, &ended):
		if code, ok := exitCode(ended.Sandbox); ok {
			fmt.Fprintln(r.call.IO.Err, "sandbar: the main process ended before its output could be read")
			r.explain(ended.Sandbox)
			return code, nil
		}
		return 0, err
	case err != nil:
		return 0, err
	}
	err = attach.Logs(ctx, r.sandboxes.API, &sandboxv1.StreamLogsRequest{SandboxId: sandbox.GetSandboxId(), Follow: true}, r.call.IO.Out, attach.Sleep)
	if err != nil && ctx.Err() != nil {
		return 0, err
	}
	// The exit code says more than a log that broke off because of the end.
	last, goneErr := r.sandboxes.Gone(ctx, sandbox)
	if goneErr != nil {
		return 0, errors.Join(err, goneErr)
	}
	code, ok := exitCode(last)
	if !ok {
		return 0, errors.Join(&lifecycle.EndedError{Sandbox: last}, err)
	}
	if err != nil {
		fmt.Fprintf(r.call.IO.Err, "sandbar: the last of the output is missing: %v\n", err)
	}
	r.explain(last)
	return code, nil
}

// explain says why a main process did not end by itself; the end of one that
// did needs no words.
func (r *runner) explain(sandbox *sandboxv1.Sandbox) {
	if sandbox.GetStatus().GetState() != sandboxv1.State_STATE_COMPLETED {
		fmt.Fprintln(r.call.IO.Err, "sandbar:", lifecycle.Explain(sandbox))
	}
}

// exitCode is that of a main process that was seen to end; a sandbox that
// failed otherwise has none to pass on.
func exitCode(sandbox *sandboxv1.Sandbox) (code int, ok bool) {
	status := sandbox.GetStatus()
	return int(status.GetExitCode()), status.ExitCode != nil
}
