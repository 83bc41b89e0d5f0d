package fleet

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/validation"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
)

var _ adminv1connect.ClusterServiceHandler = (*Clusters)(nil)

// Clusters serves ClusterService.
type Clusters struct{ cfg Config }

// CreateCluster implements ClusterService.
func (c *Clusters) CreateCluster(ctx context.Context, req *adminv1.CreateClusterRequest) (*adminv1.CreateClusterResponse, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	wish := req.GetCluster()
	cluster := Cluster{OrganizationID: caller.OrganizationID, Name: wish.GetName(), Zone: wish.GetZone(), Kind: wish.GetKind()}
	if err := c.validate(cluster); err != nil {
		return nil, err
	}
	cluster, err = c.insert(ctx, cluster, caller)
	if errors.Is(err, ErrClusterExists) {
		return nil, apierr.New(apierr.ClusterExists, "a cluster named %q is registered already; choose another name", cluster.Name)
	}
	if err != nil {
		return nil, err
	}
	return &adminv1.CreateClusterResponse{Cluster: describeCluster(cluster)}, nil
}

// Ensure returns the cluster of that name, and registers it when it is not
// there. It is how a server registers its own host.
func (c *Clusters) Ensure(ctx context.Context, cluster Cluster) (Cluster, error) {
	if err := c.validate(cluster); err != nil {
		return Cluster{}, err
	}
	added, err := c.insert(ctx, cluster, auth.Principal{OrganizationID: cluster.OrganizationID})
	if errors.Is(err, ErrClusterExists) {
		return c.cfg.Store.Cluster(ctx, cluster.OrganizationID, cluster.Name)
	}
	return added, err
}

func (c *Clusters) validate(cluster Cluster) error {
	var f apierr.Violations
	if len(validation.IsDNS1123Label(cluster.Name)) > 0 {
		f.Add("cluster.name", "DNS_LABEL", "%q is not a DNS label: use 1 to 63 lower-case letters, digits and \"-\"", cluster.Name)
	}
	if uuid.Validate(cluster.Name) == nil {
		// A cluster is found by UUID or name, so a name must not look like one.
		f.Add("cluster.name", "UUID", "must not be a UUID")
	}
	if len(validation.IsDNS1123Label(strings.ToLower(cluster.Zone))) > 0 {
		f.Add("cluster.zone", "ZONE", "%q is not a zone: use 1 to 63 letters, digits and \"-\"", cluster.Zone)
	}
	if c.cfg.Installers[cluster.Kind] == nil {
		f.Add("cluster.kind", "CLUSTER_KIND", "this server cannot install runners on that kind of cluster")
	}
	return f.Err()
}

func (c *Clusters) insert(ctx context.Context, cluster Cluster, caller auth.Principal) (Cluster, error) {
	cluster.ClusterID = c.cfg.NewID()
	cluster.Zone = strings.ToLower(cluster.Zone)
	cluster.CreateTime = c.cfg.Now()
	entry := caller.Entry(cluster.CreateTime, "CreateCluster", cluster.ClusterID)
	entry.After = clusterDigest(cluster)
	return cluster, c.cfg.Store.InsertCluster(ctx, cluster, entry)
}

// GetCluster implements ClusterService.
func (c *Clusters) GetCluster(ctx context.Context, req *adminv1.GetClusterRequest) (*adminv1.GetClusterResponse, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	cluster, err := c.cfg.Store.Cluster(ctx, caller.OrganizationID, req.GetCluster())
	if err != nil {
		return nil, explainCluster(err, req.GetCluster())
	}
	return &adminv1.GetClusterResponse{Cluster: describeCluster(cluster)}, nil
}

// ListClusters implements ClusterService.
func (c *Clusters) ListClusters(ctx context.Context, _ *adminv1.ListClustersRequest) (*adminv1.ListClustersResponse, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	clusters, err := c.cfg.Store.Clusters(ctx, caller.OrganizationID)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListClustersResponse{}
	for _, cluster := range clusters {
		response.Clusters = append(response.Clusters, describeCluster(cluster))
	}
	return response, nil
}

// DeleteCluster implements ClusterService.
func (c *Clusters) DeleteCluster(ctx context.Context, req *adminv1.DeleteClusterRequest) (*adminv1.DeleteClusterResponse, error) {
	caller, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	cluster, err := c.cfg.Store.Cluster(ctx, caller.OrganizationID, req.GetCluster())
	if err == nil {
		entry := caller.Entry(c.cfg.Now(), "DeleteCluster", cluster.ClusterID)
		entry.Before = clusterDigest(cluster)
		err = c.cfg.Store.DeleteCluster(ctx, caller.OrganizationID, cluster.ClusterID, entry)
	}
	if errors.Is(err, ErrClusterNotFound) && req.GetAllowMissing() {
		return &adminv1.DeleteClusterResponse{}, nil
	}
	if err != nil {
		return nil, explainCluster(err, req.GetCluster())
	}
	return &adminv1.DeleteClusterResponse{}, nil
}

// clusterDigest is the digest of what callers declare of a cluster.
func clusterDigest(cluster Cluster) []byte {
	return audit.Digest(&adminv1.Cluster{
		ClusterId: cluster.ClusterID, Name: cluster.Name, Zone: cluster.Zone, Kind: cluster.Kind,
	})
}

func explainCluster(err error, cluster string) error {
	var taken *ClusterTakenError
	switch {
	case errors.As(err, &taken):
		return apierr.New(apierr.ClusterInUse, "runner %q is on cluster %q; delete the runner first", taken.RunnerID, cluster).
			With("runner_id", taken.RunnerID).Because(err)
	case errors.Is(err, ErrClusterNotFound):
		return apierr.New(apierr.ClusterNotFound, "no cluster %q is registered in this organization; sandbar cluster list shows those that are", cluster).Because(err)
	}
	return err
}

func describeCluster(cluster Cluster) *adminv1.Cluster {
	return &adminv1.Cluster{
		ClusterId:  cluster.ClusterID,
		Name:       cluster.Name,
		Zone:       cluster.Zone,
		Kind:       cluster.Kind,
		CreateTime: timestamppb.New(cluster.CreateTime),
		RunnerId:   cluster.RunnerID,
	}
}
