package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// EnsureOrganization implements auth.OrganizationStore.
func (s *Store) EnsureOrganization(ctx context.Context, organization auth.Organization) (auth.Organization, error) {
	var stored db.Organization
	err := s.transaction(ctx, "add organization", noLock, func(q *db.Queries) error {
		err := q.InsertOrganization(ctx, db.InsertOrganizationParams{
			OrganizationID: organization.OrganizationID,
			Name:           organization.Name,
			CreateTime:     encodeTime(organization.CreateTime),
		})
		if err != nil {
			return err
		}
		stored, err = q.OrganizationByName(ctx, organization.Name)
		return err
	})
	return auth.Organization{
		OrganizationID: stored.OrganizationID,
		Name:           stored.Name,
		CreateTime:     decodeTime(stored.CreateTime),
	}, err
}

// InsertToken implements auth.Store.
func (s *Store) InsertToken(ctx context.Context, token auth.Token, entry audit.Entry) error {
	return s.transaction(ctx, "add token", noLock, func(q *db.Queries) error {
		err := q.InsertToken(ctx, db.InsertTokenParams{
			TokenID:        token.TokenID,
			OrganizationID: token.OrganizationID,
			UserID:         token.UserID,
			DisplayName:    token.DisplayName,
			Role:           int64(token.Role),
			Hash:           token.Hash[:],
			CreateTime:     encodeTime(token.CreateTime),
			ExpireTime:     encodeOptionalTime(token.ExpireTime),
			RevokeTime:     encodeOptionalTime(token.RevokeTime),
		})
		if err != nil {
			return err
		}
		return insertAudit(ctx, q, entry)
	})
}

// Token implements auth.Store.
func (s *Store) Token(ctx context.Context, tokenID string) (auth.Token, error) {
	row, err := s.reader().Token(ctx, tokenID)
	if errors.Is(err, sql.ErrNoRows) {
		return auth.Token{}, auth.ErrTokenNotFound
	}
	if err != nil {
		return auth.Token{}, s.explain("read token", err)
	}
	return decodeToken(row), nil
}

// Tokens implements auth.Store.
func (s *Store) Tokens(ctx context.Context, organizationID string) ([]auth.Token, error) {
	rows, err := s.reader().Tokens(ctx, organizationID)
	if err != nil {
		return nil, s.explain("list tokens", err)
	}
	tokens := make([]auth.Token, len(rows))
	for i, row := range rows {
		tokens[i] = decodeToken(row)
	}
	return tokens, nil
}

// RevokeToken implements auth.Store.
func (s *Store) RevokeToken(ctx context.Context, organizationID, tokenID string, entry audit.Entry) error {
	return s.transaction(ctx, "revoke token", tokenLock(tokenID), func(q *db.Queries) error {
		token, err := q.Token(ctx, tokenID)
		switch {
		case errors.Is(err, sql.ErrNoRows), err == nil && token.OrganizationID != organizationID:
			return auth.ErrTokenNotFound
		case err != nil || token.RevokeTime != nil:
			return err
		}
		err = q.RevokeToken(ctx, db.RevokeTokenParams{
			RevokeTime:     encodeOptionalTime(entry.Time),
			OrganizationID: organizationID,
			TokenID:        tokenID,
		})
		if err != nil {
			return err
		}
		return insertAudit(ctx, q, entry)
	})
}

func decodeToken(row db.Token) auth.Token {
	token := auth.Token{
		TokenID:        row.TokenID,
		OrganizationID: row.OrganizationID,
		UserID:         row.UserID,
		DisplayName:    row.DisplayName,
		Role:           auth.Role(row.Role),
		CreateTime:     decodeTime(row.CreateTime),
		ExpireTime:     decodeOptionalTime(row.ExpireTime),
		RevokeTime:     decodeOptionalTime(row.RevokeTime),
	}
	copy(token.Hash[:], row.Hash)
	return token
}
