package sqlstore

import (
	"context"
	"math"

	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// AuditEntries implements audit.Store.
func (s *Store) AuditEntries(ctx context.Context, query audit.Query) ([]audit.Entry, error) {
	before := query.BeforeAuditID
	if before == 0 {
		before = math.MaxInt64
	}
	rows, err := s.reader().AuditLog(ctx, db.AuditLogParams{
		OrganizationID: query.OrganizationID,
		BeforeAuditID:  before,
		Resource:       query.Resource,
		UserID:         query.UserID,
		Page:           int32(query.Limit),
	})
	if err != nil {
		return nil, s.explain("list audit entries", err)
	}
	entries := make([]audit.Entry, len(rows))
	for i, row := range rows {
		entries[i] = audit.Entry{
			AuditID:        row.AuditID,
			OrganizationID: row.OrganizationID,
			Time:           decodeTime(row.Time),
			UserID:         row.UserID,
			TokenID:        row.TokenID,
			SourceAddress:  row.SourceAddress,
			Client:         row.Client,
			Action:         row.Action,
			Resource:       row.Resource,
			Before:         row.BeforeDigest,
			After:          row.AfterDigest,
			Detail:         row.Detail,
		}
	}
	return entries, nil
}

func insertAudit(ctx context.Context, q *db.Queries, entry audit.Entry) error {
	return q.InsertAudit(ctx, db.InsertAuditParams{
		OrganizationID: entry.OrganizationID,
		Time:           encodeTime(entry.Time),
		UserID:         entry.UserID,
		TokenID:        entry.TokenID,
		SourceAddress:  entry.SourceAddress,
		Client:         entry.Client,
		Action:         entry.Action,
		Resource:       entry.Resource,
		BeforeDigest:   entry.Before,
		AfterDigest:    entry.After,
		Detail:         entry.Detail,
	})
}
