package policy

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Status is what a sandbox of that spec shows from the moment it is accepted:
// state CREATING and all that was resolved, in the words in which it was given.
// Gateway and runner both make it here, so that they tell the same.
//
// own is the class that the runner gives to sandboxes for which the policy
// names none. When and where the sandbox was made is for the caller to add.
func (r *Resolved) Status(spec *sandboxv1.SandboxSpec, own string) *sandboxv1.SandboxStatus {
	primary := r.Containers[r.Primary]
	class := r.RuntimeClass
	if class == "" {
		class = own
	}
	status := &sandboxv1.SandboxStatus{
		State:                         sandboxv1.State_STATE_CREATING,
		EffectiveResourceRequirements: primary.Requirements,
		// Clients that know no requirements read this: what the sandbox may use.
		EffectiveResources:          primary.Requirements.GetLimits(),
		EffectiveMaxLifetimeSeconds: r.LifetimeSeconds,
		EffectiveEgress:             r.Egress,
		EffectiveIngress:            r.Ingress,
		EffectiveRuntimeClass:       class,
		ContainerStatuses:           []*sandboxv1.ContainerStatus{{Name: primary.Name, State: sandboxv1.State_STATE_CREATING}},
	}
	for _, service := range spec.GetServices() {
		status.Services = append(status.Services, &sandboxv1.ServiceStatus{
			Port: service.GetPort(), Name: service.GetName(), Protocol: service.GetProtocol(), Visibility: service.GetVisibility(),
		})
	}
	return status
}
