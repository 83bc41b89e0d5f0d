package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// InsertCluster implements fleet.Store.
func (s *Store) InsertCluster(ctx context.Context, cluster fleet.Cluster, audit audit.Entry) error {
	return s.adding(ctx, "add cluster", organizationLock(cluster.OrganizationID), func(q *db.Queries) error {
		taken, err := q.ClusterNameTaken(ctx, db.ClusterNameTakenParams{OrganizationID: cluster.OrganizationID, Name: cluster.Name})
		if err != nil {
			return err
		}
		if taken > 0 {
			return fleet.ErrClusterExists
		}
		err = q.InsertCluster(ctx, db.InsertClusterParams{
			OrganizationID: cluster.OrganizationID,
			ClusterID:      cluster.ClusterID,
			Name:           cluster.Name,
			Zone:           cluster.Zone,
			Kind:           int64(cluster.Kind),
			CreateTime:     encodeTime(cluster.CreateTime),
		})
		if err != nil {
			return err
		}
		return insertAudit(ctx, q, audit)
	})
}

// Cluster implements fleet.Store.
func (s *Store) Cluster(ctx context.Context, organizationID, cluster string) (fleet.Cluster, error) {
	found, err := findCluster(ctx, s.reader(), organizationID, cluster)
	return found, s.explain("read cluster", err)
}

// Clusters implements fleet.Store.
func (s *Store) Clusters(ctx context.Context, organizationID string) ([]fleet.Cluster, error) {
	rows, err := s.reader().Clusters(ctx, organizationID)
	if err != nil {
		return nil, s.explain("list clusters", err)
	}
	clusters := make([]fleet.Cluster, len(rows))
	for i, row := range rows {
		clusters[i] = decodeCluster(row.Cluster, row.RunnerID)
	}
	return clusters, nil
}

// DeleteCluster implements fleet.Store.
func (s *Store) DeleteCluster(ctx context.Context, organizationID, clusterID string, audit audit.Entry) error {
	return s.transaction(ctx, "delete cluster", organizationLock(organizationID), func(q *db.Queries) error {
		cluster, err := findCluster(ctx, q, organizationID, clusterID)
		if err != nil {
			return err
		}
		if cluster.RunnerID != "" {
			return &fleet.ClusterTakenError{RunnerID: cluster.RunnerID}
		}
		if _, err := q.DeleteCluster(ctx, db.DeleteClusterParams{OrganizationID: organizationID, ClusterID: cluster.ClusterID}); err != nil {
			return err
		}
		return insertAudit(ctx, q, audit)
	})
}

func findCluster(ctx context.Context, q *db.Queries, organizationID, cluster string) (fleet.Cluster, error) {
	row, err := q.Cluster(ctx, db.ClusterParams{OrganizationID: organizationID, Cluster: cluster})
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Cluster{}, fleet.ErrClusterNotFound
	}
	if err != nil {
		return fleet.Cluster{}, err
	}
	return decodeCluster(row.Cluster, row.RunnerID), nil
}

func decodeCluster(row db.Cluster, runnerID string) fleet.Cluster {
	return fleet.Cluster{
		OrganizationID: row.OrganizationID,
		ClusterID:      row.ClusterID,
		Name:           row.Name,
		Zone:           row.Zone,
		Kind:           adminv1.ClusterKind(row.Kind),
		CreateTime:     decodeTime(row.CreateTime),
		RunnerID:       runnerID,
	}
}
