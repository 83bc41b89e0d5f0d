package auth

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

var _ adminv1connect.TokenServiceHandler = (*Service)(nil)

// Service serves TokenService.
type Service struct{ tokens *Tokens }

// NewService makes the service.
func NewService(tokens *Tokens) *Service { return &Service{tokens: tokens} }

// CreateToken implements TokenService.
func (s *Service) CreateToken(ctx context.Context, req *adminv1.CreateTokenRequest) (*adminv1.CreateTokenResponse, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	wish := NewToken{
		OrganizationID: caller.OrganizationID,
		UserID:         req.GetToken().GetUserId(),
		DisplayName:    req.GetToken().GetDisplayName(),
		Role:           roleFromAPI(req.GetToken().GetRole()),
	}
	if wish.UserID == "" {
		wish.UserID = caller.UserID
	}
	if expire := req.GetToken().GetExpireTime(); expire != nil {
		if err := expire.CheckValid(); err != nil {
			return nil, apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{{
				Field: "token.expire_time", Reason: "TIMESTAMP", Description: "is not a time between the years 1 and 9999",
			}})
		}
		if wish.ExpireTime = expire.AsTime(); wish.ExpireTime.IsZero() {
			// The zero time means none, and is not what was asked for.
			wish.ExpireTime = time.Unix(0, 0)
		}
	}
	token, secret, err := s.tokens.Create(ctx, wish)
	if err != nil {
		return nil, err
	}
	return &adminv1.CreateTokenResponse{Token: describe(token), Secret: secret.Reveal()}, nil
}

// ListTokens implements TokenService.
func (s *Service) ListTokens(ctx context.Context, _ *adminv1.ListTokensRequest) (*adminv1.ListTokensResponse, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	tokens, err := s.tokens.List(ctx, caller.OrganizationID)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListTokensResponse{}
	for _, token := range tokens {
		response.Tokens = append(response.Tokens, describe(token))
	}
	return response, nil
}

// RevokeToken implements TokenService.
func (s *Service) RevokeToken(ctx context.Context, req *adminv1.RevokeTokenRequest) (*adminv1.RevokeTokenResponse, error) {
	caller, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.tokens.Revoke(ctx, caller.OrganizationID, req.GetTokenId()); err != nil {
		return nil, err
	}
	return &adminv1.RevokeTokenResponse{}, nil
}

func caller(ctx context.Context) (Principal, error) {
	principal, ok := PrincipalFrom(ctx)
	if !ok {
		return Principal{}, apierr.New(apierr.Unauthenticated, "the request carries no token")
	}
	return principal, nil
}

func roleFromAPI(role adminv1.Role) Role {
	switch role {
	case adminv1.Role_ROLE_SANDBOX_USER:
		return RoleUser
	case adminv1.Role_ROLE_SANDBOX_ADMIN:
		return RoleAdmin
	case adminv1.Role_ROLE_UNSPECIFIED:
	}
	return RoleNone
}

func roleToAPI(role Role) adminv1.Role {
	switch role {
	case RoleUser:
		return adminv1.Role_ROLE_SANDBOX_USER
	case RoleAdmin:
		return adminv1.Role_ROLE_SANDBOX_ADMIN
	case RoleNone:
	}
	return adminv1.Role_ROLE_UNSPECIFIED
}

func describe(token Token) *adminv1.Token {
	return &adminv1.Token{
		TokenId:     token.TokenID,
		DisplayName: token.DisplayName,
		Role:        roleToAPI(token.Role),
		UserId:      token.UserID,
		CreateTime:  timestamppb.New(token.CreateTime),
		ExpireTime:  timestamp(token.ExpireTime),
		RevokeTime:  timestamp(token.RevokeTime),
	}
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
