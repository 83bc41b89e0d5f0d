package runner

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
)

type deleteOptions struct {
	Runners      []string
	Yes          bool
	Wait         bool
	AllowMissing bool
}

func newDelete(call *invocation.Invocation) *cobra.Command {
	options := &deleteOptions{}
	command := &cobra.Command{
		Use:   "delete RUNNER…",
		Short: "Delete runners and end their sandboxes",
		Long: `Delete runners: no new sandboxes are placed on them, those that run get their
grace and are ended, and the runners are taken off their clusters. On a terminal
you are asked first; elsewhere --yes is needed. All are tried, whatever happens
to one.`,
		Example: `  sandbar runner delete demo-runner
  sandbar runner delete --yes --wait demo-runner other-runner`,
		Args: invocation.Args(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			options.Runners = args
			return runDelete(command.Context(), call, *options, attach.Sleep)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&options.Yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&options.Wait, "wait", false, "wait until they are gone")
	flags.BoolVar(&options.AllowMissing, "allow-missing", false, "succeed for runners that do not exist")
	return command
}

func runDelete(ctx context.Context, call *invocation.Invocation, options deleteOptions, wait attach.Wait) error {
	if !options.Yes {
		if err := confirm(call, options.Runners); err != nil {
			return err
		}
	}
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	return call.Each(options.Runners, func(id string) (string, error) {
		_, err := server.Runners.DeleteManagedRunner(ctx, &sandboxv1.DeleteManagedRunnerRequest{
			RunnerId: id, AllowMissing: options.AllowMissing,
		})
		if err != nil {
			return "", err
		}
		if !options.Wait {
			return "is being deleted", nil
		}
		progress := call.IO.Progress(call.Now)
		defer progress.Done()
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
			_, err := server.Runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: id})
			if connect.CodeOf(err) == connect.CodeNotFound {
				return "is gone", nil
			}
			if err != nil {
				return "", fmt.Errorf("wait for its end: %w", err)
			}
			progress.Show("deleting " + id)
			if err := wait(ctx, pause); err != nil {
				return "", err
			}
		}
	})
}

func confirm(call *invocation.Invocation, ids []string) error {
	if !call.IO.InIsTerminal() {
		return invocation.Usagef("deleting a runner ends its sandboxes: add --yes if that is what you want")
	}
	fmt.Fprintf(call.IO.Err, "Delete %s and end all sandboxes there? [y/N] ", strings.Join(ids, ", "))
	answer, err := bufio.NewReader(call.IO.In).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		return invocation.Usagef("nothing was deleted")
	}
	return nil
}
