package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// InsertSandbox implements gateway.Store.
func (s *Store) InsertSandbox(ctx context.Context, record *gateway.Record) (stored *gateway.Record, inserted bool, err error) {
	row, err := encodeSandbox(record)
	if err != nil {
		return nil, false, err
	}
	lock := noLock
	if record.RequestID != "" {
		lock = requestLock(record.OrganizationID, record.RequestID)
	}
	err = s.adding(ctx, "add sandbox", lock, func(q *db.Queries) error {
		if row.RequestID != nil {
			earlier, err := q.SandboxByRequest(ctx, db.SandboxByRequestParams{OrganizationID: row.OrganizationID, RequestID: row.RequestID})
			if err == nil {
				stored, err = decodeSandbox(earlier)
				return err
			}
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		if err := q.InsertSandbox(ctx, db.InsertSandboxParams(row)); err != nil {
			return err
		}
		stored, inserted = record, true
		return insertSandboxIndex(ctx, q, record)
	})
	if err != nil {
		return nil, false, err
	}
	return stored, inserted, nil
}

// insertSandboxIndex makes the sandbox findable by its tags and volumes.
func insertSandboxIndex(ctx context.Context, q *db.Queries, record *gateway.Record) error {
	created := encodeTime(record.CreateTime)
	for _, tag := range record.Spec.GetTags() {
		err := q.InsertSandboxTag(ctx, db.InsertSandboxTagParams{
			OrganizationID: record.OrganizationID, Tag: tag, CreateTime: created, SandboxID: record.SandboxID,
		})
		if err != nil {
			return err
		}
	}
	for _, volume := range record.Spec.GetVolumes() {
		if volume.GetVolumeId() == "" {
			continue
		}
		err := q.InsertSandboxVolume(ctx, db.InsertSandboxVolumeParams{
			OrganizationID: record.OrganizationID, VolumeID: volume.GetVolumeId(), CreateTime: created, SandboxID: record.SandboxID,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Sandbox implements gateway.Store.
func (s *Store) Sandbox(ctx context.Context, organizationID, sandboxID string) (*gateway.Record, error) {
	found, err := findSandbox(ctx, s.reader(), organizationID, sandboxID)
	return found, s.explain("read sandbox", err)
}

// SandboxByRequest implements gateway.Store.
func (s *Store) SandboxByRequest(ctx context.Context, organizationID, requestID string) (*gateway.Record, error) {
	row, err := s.reader().SandboxByRequest(ctx, db.SandboxByRequestParams{OrganizationID: organizationID, RequestID: &requestID})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, gateway.ErrSandboxNotFound
	}
	if err != nil {
		return nil, s.explain("read sandbox by request", err)
	}
	return decodeSandbox(row)
}

// LiveSandboxes implements gateway.Store.
func (s *Store) LiveSandboxes(ctx context.Context, key gateway.RunnerKey) ([]*gateway.Record, error) {
	rows, err := s.reader().LiveSandboxes(ctx, db.LiveSandboxesParams{OrganizationID: key.OrganizationID, RunnerID: key.RunnerID})
	if err != nil {
		return nil, s.explain("list live sandboxes", err)
	}
	return decodeSandboxes(rows)
}

// ChangeSandbox implements gateway.Store.
func (s *Store) ChangeSandbox(ctx context.Context, organizationID, sandboxID string, change func(*gateway.Record) bool) (*gateway.Record, error) {
	var record *gateway.Record
	err := s.transaction(ctx, "change sandbox", sandboxLock(organizationID, sandboxID), func(q *db.Queries) (err error) {
		if record, err = findSandbox(ctx, q, organizationID, sandboxID); err != nil {
			return err
		}
		if !change(record) {
			return nil
		}
		row, err := encodeSandbox(record)
		if err != nil {
			return err
		}
		return q.UpdateSandbox(ctx, db.UpdateSandboxParams{
			Status:             row.Status,
			State:              row.State,
			Generation:         row.Generation,
			EndTime:            row.EndTime,
			TerminateRequested: row.TerminateRequested,
			OrganizationID:     organizationID,
			SandboxID:          sandboxID,
		})
	})
	if err != nil {
		return nil, err
	}
	return record, nil
}

// DeleteSandboxesEndedBefore implements gateway.Store.
func (s *Store) DeleteSandboxesEndedBefore(ctx context.Context, before time.Time) (deleted int64, err error) {
	err = s.transaction(ctx, "forget ended sandboxes", noLock, func(q *db.Queries) error {
		limit := encodeTime(before)
		deleted, err = q.DeleteSandboxesEndedBefore(ctx, &limit)
		return err
	})
	return deleted, err
}

func findSandbox(ctx context.Context, q *db.Queries, organizationID, sandboxID string) (*gateway.Record, error) {
	row, err := q.Sandbox(ctx, db.SandboxParams{OrganizationID: organizationID, SandboxID: sandboxID})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, gateway.ErrSandboxNotFound
	}
	if err != nil {
		return nil, err
	}
	return decodeSandbox(row)
}

func encodeSandbox(record *gateway.Record) (db.Sandbox, error) {
	spec, err := proto.Marshal(record.Spec)
	if err != nil {
		return db.Sandbox{}, fmt.Errorf("encode sandbox spec: %w", err)
	}
	status, err := proto.Marshal(record.Status)
	if err != nil {
		return db.Sandbox{}, fmt.Errorf("encode sandbox status: %w", err)
	}
	row := db.Sandbox{
		OrganizationID: record.OrganizationID,
		SandboxID:      record.SandboxID,
		UserID:         record.UserID,
		RunnerID:       record.RunnerID,
		RequestDigest:  record.RequestDigest,
		Spec:           notNil(spec),
		Status:         notNil(status),
		State:          int64(record.Status.GetState()),
		Generation:     record.Generation,
		CreateTime:     encodeTime(record.CreateTime),
		EndTime:        encodeOptionalTime(record.EndTime),
	}
	if record.RequestID != "" {
		row.RequestID = &record.RequestID
	}
	if record.TerminateRequested {
		row.TerminateRequested = 1
	}
	return row, nil
}

// notNil keeps the empty message from becoming NULL.
func notNil(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

func decodeSandboxes(rows []db.Sandbox) ([]*gateway.Record, error) {
	records := make([]*gateway.Record, len(rows))
	for i, row := range rows {
		record, err := decodeSandbox(row)
		if err != nil {
			return nil, err
		}
		records[i] = record
	}
	return records, nil
}

func decodeSandbox(row db.Sandbox) (*gateway.Record, error) {
	spec, status := &sandboxv1.SandboxSpec{}, &sandboxv1.SandboxStatus{}
	if err := proto.Unmarshal(row.Spec, spec); err != nil {
		return nil, fmt.Errorf("decode spec of sandbox %s: %w", row.SandboxID, err)
	}
	if err := proto.Unmarshal(row.Status, status); err != nil {
		return nil, fmt.Errorf("decode status of sandbox %s: %w", row.SandboxID, err)
	}
	record := &gateway.Record{
		SandboxID:          row.SandboxID,
		OrganizationID:     row.OrganizationID,
		UserID:             row.UserID,
		RunnerID:           row.RunnerID,
		RequestDigest:      row.RequestDigest,
		Spec:               spec,
		Status:             status,
		Generation:         row.Generation,
		CreateTime:         decodeTime(row.CreateTime),
		EndTime:            decodeOptionalTime(row.EndTime),
		TerminateRequested: row.TerminateRequested != 0,
	}
	if row.RequestID != nil {
		record.RequestID = *row.RequestID
	}
	return record, nil
}
