package auth

import (
	"strings"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
)

// serviceRoles is what every method of a service needs.
var serviceRoles = map[string]Role{
	sandboxv1connect.RunnerManagementServiceName: RoleAdmin,
	sandboxv1connect.SandboxServiceName:          RoleUser,
	sandboxv1connect.DiscoveryServiceName:        RoleUser,
	sandboxv1connect.SettingsServiceName:         RoleUser,
	sandboxv1connect.VolumeServiceName:           RoleUser,
	sandboxv1connect.SandboxTemplateServiceName:  RoleUser,
	adminv1connect.ClusterServiceName:            RoleAdmin,
	adminv1connect.RunnerServiceName:             RoleAdmin,
	adminv1connect.TokenServiceName:              RoleAdmin,
	adminv1connect.ImageServiceName:              RoleAdmin,
	adminv1connect.AuditServiceName:              RoleAdmin,
}

// procedureRoles are the methods that need another role than their service.
var procedureRoles = map[string]Role{
	sandboxv1connect.SandboxTemplateServiceCreateSandboxTemplateProcedure: RoleAdmin,
	sandboxv1connect.SandboxTemplateServiceUpdateSandboxTemplateProcedure: RoleAdmin,
	sandboxv1connect.SandboxTemplateServiceDeleteSandboxTemplateProcedure: RoleAdmin,
}

// RequiredRole says what a procedure, written /package.Service/Method, needs.
// ok is false for one of a service that is not in the table: nobody may call
// it.
func RequiredRole(procedure string) (role Role, ok bool) {
	if role, ok := procedureRoles[procedure]; ok {
		return role, true
	}
	service, _, found := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	if !found {
		return RoleNone, false
	}
	role, ok = serviceRoles[service]
	return role, ok
}

// Services returns the names of the services in the table.
func Services() []string {
	var names []string
	for name := range serviceRoles {
		names = append(names, name)
	}
	return names
}

// String is the role as the contract spells it.
func (r Role) String() string {
	switch r {
	case RoleUser:
		return "SANDBOX_USER"
	case RoleAdmin:
		return "SANDBOX_ADMIN"
	case RoleNone:
	}
	return "no role"
}
