package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// InsertRunner implements fleet.Store.
func (s *Store) InsertRunner(ctx context.Context, wish fleet.NewRunner) (firstAnswer []byte, err error) {
	record := wish.Runner
	row, err := encodeRunner(record)
	if err != nil {
		return nil, err
	}
	err = s.adding(ctx, "add runner", organizationLock(record.OrganizationID), func(q *db.Queries) error {
		firstAnswer, err = earlierAnswer(ctx, q, wish)
		if firstAnswer != nil || err != nil {
			return err
		}
		if err := runnerFits(ctx, q, record); err != nil {
			return err
		}
		if err := q.InsertRunner(ctx, db.InsertRunnerParams(row)); err != nil {
			return err
		}
		if err := insertRevision(ctx, q, record.RunnerKey, wish.Revision); err != nil {
			return err
		}
		if wish.RequestID != "" {
			err := q.PutRequestID(ctx, db.PutRequestIDParams{
				OrganizationID: record.OrganizationID,
				RequestID:      wish.RequestID,
				Digest:         wish.RequestDigest,
				Answer:         wish.Answer,
				ExpireTime:     encodeTime(wish.RequestExpireTime),
			})
			if err != nil {
				return err
			}
		}
		return insertAudit(ctx, q, wish.Audit)
	})
	return firstAnswer, err
}

// earlierAnswer finds what the request id was answered with before.
func earlierAnswer(ctx context.Context, q *db.Queries, wish fleet.NewRunner) ([]byte, error) {
	if wish.RequestID == "" {
		return nil, nil
	}
	earlier, err := q.RequestID(ctx, db.RequestIDParams{OrganizationID: wish.Runner.OrganizationID, RequestID: wish.RequestID})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case earlier.ExpireTime <= encodeTime(wish.Runner.CreateTime):
		return nil, nil
	case !bytes.Equal(earlier.Digest, wish.RequestDigest):
		return nil, fleet.ErrRequestIDReused
	}
	return earlier.Answer, nil
}

// runnerFits checks that the id and the cluster are free.
func runnerFits(ctx context.Context, q *db.Queries, record *fleet.RunnerRecord) error {
	taken, err := q.RunnerExists(ctx, db.RunnerExistsParams{OrganizationID: record.OrganizationID, RunnerID: record.RunnerID})
	if err != nil {
		return err
	}
	if taken > 0 {
		return fleet.ErrRunnerExists
	}
	cluster, err := findCluster(ctx, q, record.OrganizationID, record.ClusterID)
	if err != nil {
		return err
	}
	if cluster.ClusterID != record.ClusterID {
		return fleet.ErrClusterNotFound
	}
	if cluster.RunnerID != "" {
		return &fleet.ClusterTakenError{RunnerID: cluster.RunnerID}
	}
	return nil
}

// Runner implements fleet.Store.
func (s *Store) Runner(ctx context.Context, key gateway.RunnerKey) (*fleet.RunnerRecord, error) {
	found, err := findRunner(ctx, s.reader(), key)
	return found, s.explain("read runner", err)
}

// Runners implements fleet.Store.
func (s *Store) Runners(ctx context.Context, query fleet.RunnerQuery) ([]*fleet.RunnerRecord, error) {
	rows, err := s.reader().Runners(ctx, db.RunnersParams{
		OrganizationID: query.OrganizationID,
		AfterRunnerID:  query.AfterRunnerID,
		ClusterID:      query.ClusterID,
		Zone:           query.Zone,
		RunnerGroupID:  query.RunnerGroupID,
		Page:           int32(query.Limit),
	})
	if err != nil {
		return nil, s.explain("list runners", err)
	}
	records := make([]*fleet.RunnerRecord, len(rows))
	for i, row := range rows {
		if records[i], err = decodeRunner(db.RunnerRow(row)); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// RunnerKeys implements fleet.Store.
func (s *Store) RunnerKeys(ctx context.Context) ([]gateway.RunnerKey, error) {
	rows, err := s.reader().RunnerKeys(ctx)
	if err != nil {
		return nil, s.explain("list runners", err)
	}
	keys := make([]gateway.RunnerKey, len(rows))
	for i, row := range rows {
		keys[i] = gateway.RunnerKey(row)
	}
	return keys, nil
}

// ChangeRunner implements fleet.Store.
func (s *Store) ChangeRunner(ctx context.Context, key gateway.RunnerKey, change func(*fleet.RunnerRecord) (*fleet.Write, error)) (*fleet.RunnerRecord, error) {
	var record *fleet.RunnerRecord
	err := s.transaction(ctx, "change runner", runnerLock(key), func(q *db.Queries) (err error) {
		if record, err = findRunner(ctx, q, key); err != nil {
			return err
		}
		write, err := change(record)
		if err != nil || write == nil {
			return err
		}
		row, err := encodeRunner(record)
		if err != nil {
			return err
		}
		err = q.UpdateRunner(ctx, db.UpdateRunnerParams{
			RunnerGroupID:     row.RunnerGroupID,
			DisplayName:       row.DisplayName,
			Spec:              row.Spec,
			Policy:            row.Policy,
			Etag:              row.Etag,
			Phase:             row.Phase,
			PhaseTime:         row.PhaseTime,
			RolloutTime:       row.RolloutTime,
			LatestRevision:    row.LatestRevision,
			TargetRevision:    row.TargetRevision,
			ActiveRevision:    row.ActiveRevision,
			InstallError:      row.InstallError,
			UpdateTime:        row.UpdateTime,
			LastHeartbeatTime: row.LastHeartbeatTime,
			OrganizationID:    key.OrganizationID,
			RunnerID:          key.RunnerID,
		})
		if err != nil {
			return err
		}
		if write.Revision != nil {
			if err := insertRevision(ctx, q, key, *write.Revision); err != nil {
				return err
			}
		}
		if write.Audit != nil {
			if err := insertAudit(ctx, q, *write.Audit); err != nil {
				return err
			}
		}
		record, err = findRunner(ctx, q, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return record, nil
}

// DeleteRunner implements fleet.Store.
func (s *Store) DeleteRunner(ctx context.Context, key gateway.RunnerKey, uid string, audit audit.Entry) error {
	return s.transaction(ctx, "delete runner", runnerLock(key), func(q *db.Queries) error {
		deleted, err := q.DeleteRunner(ctx, db.DeleteRunnerParams{OrganizationID: key.OrganizationID, RunnerID: key.RunnerID, Uid: uid})
		if err != nil || deleted == 0 {
			return err
		}
		return insertAudit(ctx, q, audit)
	})
}

// Revision implements fleet.Store.
func (s *Store) Revision(ctx context.Context, key gateway.RunnerKey, number int32) (fleet.Revision, error) {
	row, err := s.reader().Revision(ctx, db.RevisionParams{
		OrganizationID: key.OrganizationID, RunnerID: key.RunnerID, Revision: int64(number),
	})
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Revision{}, fleet.ErrRevisionNotFound
	}
	if err != nil {
		return fleet.Revision{}, s.explain("read revision", err)
	}
	return decodeRevision(row)
}

func decodeRevision(row db.RunnerRevision) (fleet.Revision, error) {
	deployment, err := decodeJSON(row.Deployment, &sandboxv1.DeploymentSpec{})
	return fleet.Revision{
		Number:     int32(row.Revision),
		Version:    row.Version,
		Deployment: deployment,
		CreateTime: decodeTime(row.CreateTime),
		Author:     row.Author,
	}, err
}

// DeleteExpiredRequests implements fleet.Store.
func (s *Store) DeleteExpiredRequests(ctx context.Context, before time.Time) error {
	return s.transaction(ctx, "forget request ids", noLock, func(q *db.Queries) error {
		return q.DeleteExpiredRequestIDs(ctx, encodeTime(before))
	})
}

func insertRevision(ctx context.Context, q *db.Queries, key gateway.RunnerKey, revision fleet.Revision) error {
	deployment, err := encodeJSON(revision.Deployment)
	if err != nil {
		return err
	}
	return q.InsertRevision(ctx, db.InsertRevisionParams{
		OrganizationID: key.OrganizationID,
		RunnerID:       key.RunnerID,
		Revision:       int64(revision.Number),
		Version:        revision.Version,
		Deployment:     deployment,
		Author:         revision.Author,
		CreateTime:     encodeTime(revision.CreateTime),
	})
}

func findRunner(ctx context.Context, q *db.Queries, key gateway.RunnerKey) (*fleet.RunnerRecord, error) {
	row, err := q.Runner(ctx, db.RunnerParams{OrganizationID: key.OrganizationID, RunnerID: key.RunnerID})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fleet.ErrRunnerNotFound
	}
	if err != nil {
		return nil, err
	}
	return decodeRunner(row)
}

func encodeRunner(record *fleet.RunnerRecord) (db.ManagedRunner, error) {
	spec, err := encodeJSON(record.Spec)
	if err != nil {
		return db.ManagedRunner{}, err
	}
	policy, err := encodeOptionalJSON(record.Policy, record.Policy != nil)
	if err != nil {
		return db.ManagedRunner{}, err
	}
	installError, err := encodeOptionalJSON(record.InstallError, record.InstallError != nil)
	if err != nil {
		return db.ManagedRunner{}, err
	}
	return db.ManagedRunner{
		OrganizationID:    record.OrganizationID,
		RunnerID:          record.RunnerID,
		Uid:               record.UID,
		ClusterID:         record.ClusterID,
		Zone:              record.Zone,
		RunnerGroupID:     record.RunnerGroupID,
		DisplayName:       record.DisplayName,
		Spec:              spec,
		Policy:            policy,
		Etag:              record.ETag,
		Phase:             string(record.Phase),
		PhaseTime:         encodeTime(record.PhaseTime),
		RolloutTime:       encodeTime(record.RolloutTime),
		LatestRevision:    int64(record.LatestRevision),
		TargetRevision:    int64(record.TargetRevision),
		ActiveRevision:    int64(record.ActiveRevision),
		InstallError:      installError,
		CreateTime:        encodeTime(record.CreateTime),
		UpdateTime:        encodeTime(record.UpdateTime),
		LastHeartbeatTime: encodeOptionalTime(record.LastHeartbeatTime),
	}, nil
}

func decodeRunner(found db.RunnerRow) (*fleet.RunnerRecord, error) {
	row := found.ManagedRunner
	target, err := decodeRevision(found.RunnerRevision)
	if err != nil {
		return nil, err
	}
	spec, err := decodeJSON(row.Spec, &sandboxv1.ManagedRunnerSpec{})
	if err != nil {
		return nil, err
	}
	policy, err := decodeOptionalJSON(row.Policy, &sandboxv1.Policy{})
	if err != nil {
		return nil, err
	}
	installError, err := decodeOptionalJSON(row.InstallError, &sandboxv1.InstallError{})
	if err != nil {
		return nil, err
	}
	return &fleet.RunnerRecord{
		RunnerKey:         gateway.RunnerKey{OrganizationID: row.OrganizationID, RunnerID: row.RunnerID},
		UID:               row.Uid,
		ClusterID:         row.ClusterID,
		Zone:              row.Zone,
		RunnerGroupID:     row.RunnerGroupID,
		DisplayName:       row.DisplayName,
		Spec:              spec,
		Policy:            policy,
		ETag:              row.Etag,
		Phase:             fleet.Phase(row.Phase),
		PhaseTime:         decodeTime(row.PhaseTime),
		RolloutTime:       decodeTime(row.RolloutTime),
		LatestRevision:    int32(row.LatestRevision),
		TargetRevision:    int32(row.TargetRevision),
		ActiveRevision:    int32(row.ActiveRevision),
		InstallError:      installError,
		CreateTime:        decodeTime(row.CreateTime),
		UpdateTime:        decodeTime(row.UpdateTime),
		LastHeartbeatTime: decodeOptionalTime(row.LastHeartbeatTime),
		Reading:           fleet.Reading{ClusterName: found.ClusterName, Target: target, ActiveVersion: found.ActiveVersion},
	}, nil
}
