package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// PutCredential implements fleet.Store.
func (s *Store) PutCredential(ctx context.Context, credential fleet.Credential) error {
	return s.transaction(ctx, "store credential", runnerLock(credential.RunnerKey), func(q *db.Queries) error {
		if _, err := findRunner(ctx, q, credential.RunnerKey); err != nil {
			return err
		}
		err := q.DeleteCredential(ctx, db.DeleteCredentialParams{
			OrganizationID: credential.OrganizationID,
			RunnerID:       credential.RunnerID,
			Revision:       int64(credential.Revision),
			Kind:           string(credential.Kind),
		})
		if err != nil {
			return err
		}
		return q.InsertCredential(ctx, db.InsertCredentialParams{
			Kind:           string(credential.Kind),
			Hash:           credential.Hash[:],
			OrganizationID: credential.OrganizationID,
			RunnerID:       credential.RunnerID,
			Revision:       int64(credential.Revision),
			CreateTime:     encodeTime(credential.CreateTime),
		})
	})
}

// Credential implements fleet.Store.
func (s *Store) Credential(ctx context.Context, kind fleet.CredentialKind, hash [32]byte) (fleet.Credential, error) {
	row, err := s.reader().Credential(ctx, db.CredentialParams{Kind: string(kind), Hash: hash[:]})
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Credential{}, fleet.ErrCredentialNotFound
	}
	if err != nil {
		return fleet.Credential{}, s.explain("read credential", err)
	}
	return fleet.Credential{
		RunnerIdentity: gateway.RunnerIdentity{
			RunnerKey: gateway.RunnerKey{OrganizationID: row.OrganizationID, RunnerID: row.RunnerID},
			Revision:  int32(row.Revision),
		},
		Kind:       kind,
		Hash:       hash,
		CreateTime: decodeTime(row.CreateTime),
	}, nil
}

// DeleteCredentials implements fleet.Store.
func (s *Store) DeleteCredentials(ctx context.Context, key gateway.RunnerKey, revision int32) error {
	return s.transaction(ctx, "forget credentials", noLock, func(q *db.Queries) error {
		return q.DeleteCredentials(ctx, db.DeleteCredentialsParams{
			OrganizationID: key.OrganizationID, RunnerID: key.RunnerID, Revision: int64(revision),
		})
	})
}
