// Package image is `sandbar image`: the images that a runner keeps on its host.
package image

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// New makes the command and all below it.
func New(call *invocation.Invocation) *cobra.Command {
	command := invocation.Group(&cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Look at the images that a runner keeps, and prune them",
	})
	command.AddCommand(newList(call), newPrune(call))
	return command
}

func newList(call *invocation.Invocation) *cobra.Command {
	var runner string
	command := &cobra.Command{
		Use:     "list --runner RUNNER",
		Aliases: []string{"ls"},
		Short:   "List the images on a runner's host",
		Example: `  sandbar image list --runner demo-runner`,
		Args:    invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runList(command.Context(), call, runner)
		},
	}
	command.Flags().StringVar(&runner, "runner", "", "id of the runner (required)")
	return command
}

func runList(ctx context.Context, call *invocation.Invocation, runner string) error {
	server, err := connectFor(call, runner)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Images.ListImages(ctx, &adminv1.ListImagesRequest{RunnerId: runner})
	if err != nil {
		return err
	}
	return call.Print(response, func() output.Table { return table(response.GetImages(), call.Now()) })
}

func newPrune(call *invocation.Invocation) *cobra.Command {
	var runner string
	command := &cobra.Command{
		Use:     "prune --runner RUNNER",
		Short:   "Remove the images that no sandbox uses",
		Example: `  sandbar image prune --runner demo-runner`,
		Args:    invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runPrune(command.Context(), call, runner)
		},
	}
	command.Flags().StringVar(&runner, "runner", "", "id of the runner (required)")
	return command
}

func runPrune(ctx context.Context, call *invocation.Invocation, runner string) error {
	server, err := connectFor(call, runner)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Images.PruneImages(ctx, &adminv1.PruneImagesRequest{RunnerId: runner})
	if err != nil {
		return err
	}
	removed := response.GetRemovedImages()
	if err := call.Print(response, func() output.Table { return table(removed, call.Now()) }); err != nil {
		return err
	}
	var freed int64
	for _, image := range removed {
		freed += image.GetSizeBytes()
	}
	fmt.Fprintf(call.IO.Err, "removed %s, %s\n", output.Count(len(removed), "image"), output.Bytes(freed))
	return nil
}

func connectFor(call *invocation.Invocation, runner string) (*client.Client, error) {
	if runner == "" {
		return nil, invocation.Usagef("--runner is missing: sandbar runner get lists them")
	}
	return call.Client(client.Management)
}

func table(images []*adminv1.Image, now time.Time) output.Table {
	t := output.Table{Headings: []string{"IMAGE", "DIGEST", "SIZE", "SANDBOXES", "PULLED"}}
	for _, image := range images {
		t.Rows = append(t.Rows, []string{
			output.OrUnset(strings.Join(image.GetReferences(), ", ")),
			image.GetDigest(),
			output.Bytes(image.GetSizeBytes()),
			strconv.Itoa(int(image.GetSandboxCount())),
			output.Age(image.GetPullTime(), now),
		})
	}
	return t
}
