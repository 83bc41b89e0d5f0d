package gateway

import (
	"context"
	"fmt"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// unsupported refuses one field of a request.
func unsupported(field, advice string) error {
	return apierr.New(apierr.NotImplemented, "%s: %s", field, advice).With("field", field)
}

// checkSupported refuses what the contract has and this server does not do:
// all of it at once, and never by leaving it out silently.
func checkSupported(spec *sandboxv1.SandboxSpec) error {
	var fields []string
	given := func(field string, is bool) {
		if is {
			fields = append(fields, field)
		}
	}
	given("spec.containers[1]", len(spec.GetContainers()) > 1)
	given("spec.init_containers", len(spec.GetInitContainers()) > 0)
	given("spec.volumes", len(spec.GetVolumes()) > 0)
	given("spec.network_ids", len(spec.GetNetworkIds()) > 0)
	given("spec.object_storage_access", spec.GetObjectStorageAccess() != nil)
	given("spec.instance_type", spec.GetInstanceType() != "")
	given("spec.network.ingress", len(spec.GetNetwork().GetIngress()) > 0)
	for i, rule := range spec.GetNetwork().GetEgress() {
		at := fmt.Sprintf("spec.network.egress[%d]", i)
		given(at+".tenant", rule.GetTenant() != sandboxv1.TenantScope_TENANT_SCOPE_UNSPECIFIED)
		given(at+".selector", rule.GetSelector() != nil)
	}
	for i, service := range spec.GetServices() {
		at := fmt.Sprintf("spec.services[%d]", i)
		// A service of no visibility only says which port is listened on.
		given(at+".visibility", service.GetVisibility() != sandboxv1.Visibility_VISIBILITY_UNSPECIFIED)
		given(at+".endpoint", service.GetEndpoint() != nil)
	}
	for i, c := range spec.GetContainers() {
		at := fmt.Sprintf("spec.containers[%d]", i)
		given(at+".volume_mounts", len(c.GetVolumeMounts()) > 0)
		given(at+".secret_stores", len(c.GetSecretStores()) > 0)
		given(at+".image_pull_credentials", c.GetImagePullCredentials() != nil)
		security := c.GetSecurityContext()
		given(at+".security_context.privileged", security.GetPrivileged())
		given(at+".security_context.allow_privilege_escalation", security.GetAllowPrivilegeEscalation())
		given(at+".security_context.seccomp_profile", strings.HasPrefix(security.GetSeccompProfile(), "Localhost/"))
	}
	if len(fields) == 0 {
		return nil
	}
	return apierr.New(apierr.NotImplemented, "this server does not support %s; leave it out", strings.Join(fields, ", ")).
		With("fields", strings.Join(fields, ","))
}

func noSnapshots() error {
	return apierr.New(apierr.NotImplemented, "this server does not support file system snapshots")
}

// CreateSandboxFromTemplate implements SandboxService.
func (g *Gateway) CreateSandboxFromTemplate(context.Context, *sandboxv1.CreateSandboxFromTemplateRequest) (*sandboxv1.Sandbox, error) {
	return nil, apierr.New(apierr.NotImplemented, "this server does not support sandbox templates; use CreateSandbox")
}

// CreateFileSystemSnapshot implements SandboxService.
func (g *Gateway) CreateFileSystemSnapshot(context.Context, *sandboxv1.CreateFileSystemSnapshotRequest) (*sandboxv1.FileSystemSnapshot, error) {
	return nil, noSnapshots()
}

// GetFileSystemSnapshot implements SandboxService.
func (g *Gateway) GetFileSystemSnapshot(context.Context, *sandboxv1.GetFileSystemSnapshotRequest) (*sandboxv1.FileSystemSnapshot, error) {
	return nil, noSnapshots()
}

// ListFileSystemSnapshots implements SandboxService.
func (g *Gateway) ListFileSystemSnapshots(context.Context, *sandboxv1.ListFileSystemSnapshotsRequest) (*sandboxv1.ListFileSystemSnapshotsResponse, error) {
	return nil, noSnapshots()
}

// DeleteFileSystemSnapshot implements SandboxService.
func (g *Gateway) DeleteFileSystemSnapshot(context.Context, *sandboxv1.DeleteFileSystemSnapshotRequest) (*sandboxv1.FileSystemSnapshot, error) {
	return nil, noSnapshots()
}
