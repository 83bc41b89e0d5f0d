package audit

import (
	"context"
	"encoding/hex"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/pagetoken"
)

const defaultPageSize = 50

var _ adminv1connect.AuditServiceHandler = (*Service)(nil)

// Service serves AuditService.
type Service struct {
	store Store
	// organization is the caller's; false when nobody was authenticated.
	organization func(context.Context) (id string, ok bool)
}

// NewService makes the service.
func NewService(store Store, organization func(context.Context) (id string, ok bool)) *Service {
	return &Service{store: store, organization: organization}
}

// ListAuditEntries implements AuditService.
func (s *Service) ListAuditEntries(ctx context.Context, req *adminv1.ListAuditEntriesRequest) (*adminv1.ListAuditEntriesResponse, error) {
	organizationID, ok := s.organization(ctx)
	if !ok {
		return nil, apierr.New(apierr.Unauthenticated, "the request carries no token")
	}
	query := Query{
		OrganizationID: organizationID,
		Resource:       req.GetResource(),
		UserID:         req.GetUserId(),
		Limit:          pagetoken.Size(req.GetPageSize(), defaultPageSize),
	}
	list := pagetoken.List{"ListAuditEntries", organizationID, query.Resource, query.UserID}
	if token := req.GetPageToken(); token != "" {
		key, ok := list.Key(token)
		if !ok {
			return nil, apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{pagetoken.Violation()})
		}
		query.BeforeAuditID, _ = strconv.ParseInt(string(key), 10, 64) // It was put there below.
	}
	page := query.Limit
	query.Limit++ // One more tells whether there is another page.
	entries, err := s.store.AuditEntries(ctx, query)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListAuditEntriesResponse{}
	if len(entries) > page {
		entries = entries[:page]
		response.NextPageToken = list.Token(strconv.AppendInt(nil, entries[page-1].AuditID, 10))
	}
	for _, entry := range entries {
		response.AuditEntries = append(response.AuditEntries, describe(entry))
	}
	return response, nil
}

func describe(entry Entry) *adminv1.AuditEntry {
	described := &adminv1.AuditEntry{
		AuditId:       entry.AuditID,
		CreateTime:    timestamppb.New(entry.Time),
		UserId:        entry.UserID,
		TokenId:       entry.TokenID,
		SourceAddress: entry.SourceAddress,
		Client:        entry.Client,
		Action:        entry.Action,
		Resource:      entry.Resource,
		BeforeDigest:  hex.EncodeToString(entry.Before),
		AfterDigest:   hex.EncodeToString(entry.After),
	}
	if entry.Detail != "" {
		detail := &structpb.Struct{}
		if detail.UnmarshalJSON([]byte(entry.Detail)) == nil {
			described.Detail = detail
		}
	}
	return described
}
