// Package cluster is `sandbar cluster`: the places where a runner can be
// installed.
package cluster

import (
	"context"
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
		Use:     "cluster",
		Aliases: []string{"clusters"},
		Short:   "Register the places where runners can be installed",
	})
	command.AddCommand(newAdd(call), newGet(call), newList(call), newRemove(call))
	return command
}

const kindPrefix = "CLUSTER_KIND_"

type addOptions struct {
	Name string
	Zone string
	Kind string
}

func newAdd(call *invocation.Invocation) *cobra.Command {
	options := &addOptions{}
	command := &cobra.Command{
		Use:     "add NAME --zone ZONE",
		Short:   "Register a cluster",
		Long:    "Register a cluster and show the UUID that a runner's cluster_id names it by. The kind local is the host that the server runs on.",
		Example: `  sandbar cluster add this-host --zone local-01a --kind local`,
		Args:    invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			options.Name = args[0]
			return runAdd(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Zone, "zone", "", "zone of the cluster (required)")
	flags.StringVar(&options.Kind, "kind", "local", "local")
	return command
}

func runAdd(ctx context.Context, call *invocation.Invocation, options addOptions) error {
	if options.Zone == "" {
		return invocation.Usagef("--zone is missing: a runner on this cluster must name the same zone")
	}
	kind := adminv1.ClusterKind(adminv1.ClusterKind_value[kindPrefix+strings.ToUpper(options.Kind)])
	if kind == adminv1.ClusterKind_CLUSTER_KIND_UNSPECIFIED {
		return invocation.Usagef("--kind %q: it must be local", options.Kind)
	}
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Clusters.CreateCluster(ctx, &adminv1.CreateClusterRequest{
		Cluster: &adminv1.Cluster{Name: options.Name, Zone: options.Zone, Kind: kind},
	})
	if err != nil {
		return err
	}
	return printOne(call, response.GetCluster())
}

func newGet(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "get CLUSTER",
		Short: "Show one cluster, by name or UUID",
		Example: `  sandbar cluster get this-host
  sandbar cluster get -o json this-host | jq -r .clusterId`,
		Args: invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runGet(command.Context(), call, args[0])
		},
	}
}

func runGet(ctx context.Context, call *invocation.Invocation, name string) error {
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Clusters.GetCluster(ctx, &adminv1.GetClusterRequest{Cluster: name})
	if err != nil {
		return err
	}
	return printOne(call, response.GetCluster())
}

func newList(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List clusters",
		Example: `  sandbar cluster list`,
		Args:    invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runList(command.Context(), call)
		},
	}
}

func runList(ctx context.Context, call *invocation.Invocation) error {
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Clusters.ListClusters(ctx, &adminv1.ListClustersRequest{})
	if err != nil {
		return err
	}
	return call.Print(response, func() output.Table { return table(response.GetClusters(), call.Now()) })
}

func newRemove(call *invocation.Invocation) *cobra.Command {
	var allowMissing bool
	command := &cobra.Command{
		Use:     "remove CLUSTER…",
		Aliases: []string{"rm", "delete"},
		Short:   "Forget clusters on which there is no runner",
		Example: `  sandbar cluster remove this-host`,
		Args:    invocation.Args(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runRemove(command.Context(), call, args, allowMissing)
		},
	}
	command.Flags().BoolVar(&allowMissing, "allow-missing", false, "succeed for clusters that do not exist")
	return command
}

func runRemove(ctx context.Context, call *invocation.Invocation, names []string, allowMissing bool) error {
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	return call.Each(names, func(name string) (string, error) {
		_, err := server.Clusters.DeleteCluster(ctx, &adminv1.DeleteClusterRequest{Cluster: name, AllowMissing: allowMissing})
		return "is forgotten", err
	})
}

func printOne(call *invocation.Invocation, cluster *adminv1.Cluster) error {
	return call.Print(cluster, func() output.Table { return table([]*adminv1.Cluster{cluster}, call.Now()) })
}

func table(clusters []*adminv1.Cluster, now time.Time) output.Table {
	t := output.Table{Headings: []string{"CLUSTER", "NAME", "KIND", "ZONE", "RUNNER", "AGE"}}
	for _, cluster := range clusters {
		t.Rows = append(t.Rows, []string{
			cluster.GetClusterId(),
			cluster.GetName(),
			output.Word(cluster.GetKind(), kindPrefix),
			cluster.GetZone(),
			output.OrUnset(cluster.GetRunnerId()),
			output.Age(cluster.GetCreateTime(), now),
		})
	}
	return t
}
