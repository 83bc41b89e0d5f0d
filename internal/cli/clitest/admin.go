package clitest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Runners is the fake's RunnerManagementService.
type Runners struct {
	sandboxv1connect.UnimplementedRunnerManagementServiceHandler

	mu  sync.Mutex
	all []*sandboxv1.ManagedRunner
}

// Add declares a runner.
func (r *Runners) Add(runner *sandboxv1.ManagedRunner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, runner)
}

// GetManagedRunner is part of the service.
func (r *Runners) GetManagedRunner(_ context.Context, request *sandboxv1.GetManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, runner := range r.all {
		if runner.GetIdentity().GetRunnerId() == request.GetRunnerId() {
			return proto.CloneOf(runner), nil
		}
	}
	return nil, apierr.New(apierr.RunnerNotFound, "there is no runner %q", request.GetRunnerId())
}

// ListManagedRunners is part of the service.
func (r *Runners) ListManagedRunners(_ context.Context, request *sandboxv1.ListManagedRunnersRequest) (*sandboxv1.ListManagedRunnersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	response := &sandboxv1.ListManagedRunnersResponse{}
	for _, runner := range r.all {
		if request.GetZone() == "" || request.GetZone() == runner.GetIdentity().GetZone() {
			response.ManagedRunners = append(response.ManagedRunners, proto.CloneOf(runner))
		}
	}
	return response, nil
}

// DeleteManagedRunner is part of the service.
func (r *Runners) DeleteManagedRunner(_ context.Context, request *sandboxv1.DeleteManagedRunnerRequest) (*emptypb.Empty, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.all)
	r.all = slices.DeleteFunc(r.all, func(runner *sandboxv1.ManagedRunner) bool {
		return runner.GetIdentity().GetRunnerId() == request.GetRunnerId()
	})
	if len(r.all) == before && !request.GetAllowMissing() {
		return nil, apierr.New(apierr.RunnerNotFound, "there is no runner %q", request.GetRunnerId())
	}
	return &emptypb.Empty{}, nil
}

// Admin is the fake's services of administration.
type Admin struct {
	adminv1connect.UnimplementedClusterServiceHandler
	adminv1connect.UnimplementedTokenServiceHandler
	adminv1connect.UnimplementedAuditServiceHandler
	adminv1connect.UnimplementedImageServiceHandler

	mu       sync.Mutex
	clusters []*adminv1.Cluster
	tokens   []*adminv1.Token
	images   []*adminv1.Image
}

func newAdmin() *Admin {
	return &Admin{images: []*adminv1.Image{
		{References: []string{"python:3.11"}, Digest: "sha256:1111", SizeBytes: 45 << 20, SandboxCount: 1, PullTime: timestamppb.Now()},
		{References: []string{"busybox:1"}, Digest: "sha256:2222", SizeBytes: 2 << 20, PullTime: timestamppb.Now()},
	}}
}

// CreateCluster is part of the service.
func (a *Admin) CreateCluster(_ context.Context, request *adminv1.CreateClusterRequest) (*adminv1.CreateClusterResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cluster := proto.CloneOf(request.GetCluster())
	cluster.ClusterId = "cluster-" + strconv.Itoa(len(a.clusters)+1)
	cluster.CreateTime = timestamppb.Now()
	a.clusters = append(a.clusters, cluster)
	return &adminv1.CreateClusterResponse{Cluster: cluster}, nil
}

func (a *Admin) cluster(name string) *adminv1.Cluster {
	for _, cluster := range a.clusters {
		if cluster.GetName() == name || cluster.GetClusterId() == name {
			return cluster
		}
	}
	return nil
}

// GetCluster is part of the service.
func (a *Admin) GetCluster(_ context.Context, request *adminv1.GetClusterRequest) (*adminv1.GetClusterResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cluster := a.cluster(request.GetCluster())
	if cluster == nil {
		return nil, apierr.New(apierr.ClusterNotFound, "there is no cluster %q", request.GetCluster())
	}
	return &adminv1.GetClusterResponse{Cluster: cluster}, nil
}

// ListClusters is part of the service.
func (a *Admin) ListClusters(context.Context, *adminv1.ListClustersRequest) (*adminv1.ListClustersResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &adminv1.ListClustersResponse{Clusters: a.clusters}, nil
}

// DeleteCluster is part of the service.
func (a *Admin) DeleteCluster(_ context.Context, request *adminv1.DeleteClusterRequest) (*adminv1.DeleteClusterResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cluster := a.cluster(request.GetCluster())
	if cluster == nil && !request.GetAllowMissing() {
		return nil, apierr.New(apierr.ClusterNotFound, "there is no cluster %q", request.GetCluster())
	}
	a.clusters = slices.DeleteFunc(a.clusters, func(other *adminv1.Cluster) bool { return other == cluster })
	return &adminv1.DeleteClusterResponse{}, nil
}

// CreateToken is part of the service.
func (a *Admin) CreateToken(_ context.Context, request *adminv1.CreateTokenRequest) (*adminv1.CreateTokenResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := proto.CloneOf(request.GetToken())
	token.TokenId = "token-" + strconv.Itoa(len(a.tokens)+1)
	token.CreateTime = timestamppb.Now()
	a.tokens = append(a.tokens, token)
	return &adminv1.CreateTokenResponse{Token: token, Secret: "secret-of-" + token.GetTokenId()}, nil
}

// ListTokens is part of the service.
func (a *Admin) ListTokens(context.Context, *adminv1.ListTokensRequest) (*adminv1.ListTokensResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &adminv1.ListTokensResponse{Tokens: a.tokens}, nil
}

// RevokeToken is part of the service.
func (a *Admin) RevokeToken(_ context.Context, request *adminv1.RevokeTokenRequest) (*adminv1.RevokeTokenResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, token := range a.tokens {
		if token.GetTokenId() == request.GetTokenId() {
			token.RevokeTime = timestamppb.Now()
			return &adminv1.RevokeTokenResponse{}, nil
		}
	}
	return nil, apierr.New(apierr.TokenNotFound, "there is no token %q", request.GetTokenId())
}

// ListImages is part of the service.
func (a *Admin) ListImages(context.Context, *adminv1.ListImagesRequest) (*adminv1.ListImagesResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &adminv1.ListImagesResponse{Images: a.images}, nil
}

// PruneImages is part of the service.
func (a *Admin) PruneImages(context.Context, *adminv1.PruneImagesRequest) (*adminv1.PruneImagesResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	response := &adminv1.PruneImagesResponse{}
	var kept []*adminv1.Image
	for _, image := range a.images {
		if image.GetSandboxCount() > 0 {
			kept = append(kept, image)
		} else {
			response.RemovedImages = append(response.RemovedImages, image)
		}
	}
	a.images = kept
	return response, nil
}

// ListAuditEntries is part of the service.
func (a *Admin) ListAuditEntries(_ context.Context, request *adminv1.ListAuditEntriesRequest) (*adminv1.ListAuditEntriesResponse, error) {
	entries := []*adminv1.AuditEntry{
		{
			AuditId: 2, CreateTime: timestamppb.New(time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)), UserId: "ada",
			SourceAddress: "203.0.113.7", Client: "curl/8.0", Action: "UpdateManagedRunner", Resource: "demo-runner",
		},
		{AuditId: 1, CreateTime: timestamppb.New(time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)), Action: "Reconcile", Resource: "demo-runner"},
	}
	response := &adminv1.ListAuditEntriesResponse{}
	for _, entry := range entries {
		if user := request.GetUserId(); user == "" || user == entry.GetUserId() {
			response.AuditEntries = append(response.AuditEntries, entry)
		}
	}
	return response, nil
}
