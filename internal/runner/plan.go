package runner

import (
	"fmt"
	"net/netip"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// plan is a sandbox that the policy allows, in the engine's terms.
type plan struct {
	container *sandboxv1.Container
	image     string
	// spec lacks the image's digest, which the pull tells.
	spec     engine.Spec
	pull     engine.PullPolicy
	reserved amount
}

// newPlan turns a resolved sandbox into what the engine is told. Whatever this
// runner cannot do or enforce is refused, all of it at once.
func newPlan(request *runnerv1.CreateSandboxRequest, resolved *policy.Resolved, pull engine.PullPolicy, runtime string) (plan, error) {
	spec := request.GetSpec()
	if err := supported(spec); err != nil {
		return plan{}, err
	}
	if class := resolved.RuntimeClass; class != "" && class != policy.NodeDefault && class != runtime {
		return plan{}, apierr.New(apierr.PlacementUnsatisfied,
			"spec.runtime_class: the sandbox needs the runtime class %q, and this runner has only %q; leave it out or choose another runner", class, runtime)
	}
	egress, err := engineEgress(resolved)
	if err != nil {
		return plan{}, err
	}
	container := spec.GetContainers()[resolved.Primary]
	security := container.GetSecurityContext()
	if security.GetPrivileged() {
		return plan{}, apierr.New(apierr.PlacementUnsatisfied,
			"spec.containers[%d].security_context.privileged: this runner runs no privileged containers; leave it out", resolved.Primary)
	}
	if profile := security.GetSeccompProfile(); strings.HasPrefix(profile, "Localhost/") {
		return plan{}, apierr.New(apierr.PlacementUnsatisfied,
			"spec.containers[%d].security_context.seccomp_profile: this runner has no profile %q; use RuntimeDefault", resolved.Primary, profile)
	}
	return plan{
		container: container,
		image:     resolved.Containers[resolved.Primary].Image,
		pull:      pull,
		reserved:  amount(resolved.Requests),
		spec: engine.Spec{
			ID:       request.GetSandboxId(),
			Hostname: request.GetSandboxId(),
			Resources: engine.Resources{
				CPURequestMillis: resolved.Requests.CPUMillis,
				CPULimitMillis:   resolved.Limits.CPUMillis,
				MemoryLimitBytes: resolved.Limits.MemoryBytes,
			},
			Security: engine.Security{
				CapabilitiesAdd:        security.GetCapabilitiesAdd(),
				CapabilitiesDrop:       security.GetCapabilitiesDrop(),
				ReadOnlyRootFilesystem: security.GetReadOnlyRootFilesystem(),
				SeccompUnconfined:      security.GetSeccompProfile() == "Unconfined",
			},
			Network: engine.Network{DNS: resolved.DNS, Egress: egress},
			Labels:  map[string]string{"organization_id": request.GetOrganizationId()},
		},
	}, nil
}

// supported refuses the parts of a spec that this runner does not implement.
func supported(spec *sandboxv1.SandboxSpec) error {
	var wrong []apierr.Violation
	refuse := func(used bool, field, what string) {
		if used {
			wrong = append(wrong, apierr.Violation{
				Field: field, Reason: "NOT_IMPLEMENTED", Description: what + "; leave it out or choose another runner",
			})
		}
	}
	refuse(len(spec.GetContainers()) != 1, "spec.containers",
		fmt.Sprintf("%d containers were given; this runner runs exactly one in a sandbox", len(spec.GetContainers())))
	refuse(len(spec.GetInitContainers()) > 0, "spec.init_containers", "this runner runs no init containers")
	refuse(len(spec.GetVolumes()) > 0, "spec.volumes", "this runner has no volumes")
	refuse(len(spec.GetNetworkIds()) > 0, "spec.network_ids", "this runner has no sandbox networks")
	refuse(spec.GetObjectStorageAccess() != nil, "spec.object_storage_access", "this runner grants no object storage")
	for i, service := range spec.GetServices() {
		refuse(service.GetVisibility() != sandboxv1.Visibility_VISIBILITY_UNSPECIFIED || service.GetEndpoint() != nil,
			fmt.Sprintf("spec.services[%d]", i), "this runner exposes no services; only those without visibility and endpoint are accepted")
	}
	for i, container := range spec.GetContainers() {
		field := fmt.Sprintf("spec.containers[%d]", i)
		refuse(len(container.GetVolumeMounts()) > 0, field+".volume_mounts", "this runner has no volumes")
		refuse(len(container.GetSecretStores()) > 0, field+".secret_stores", "this runner has no secret stores")
		refuse(container.GetImagePullCredentials() != nil, field+".image_pull_credentials", "this runner has no secret stores to take credentials from")
	}
	return apierr.Invalid(apierr.NotImplemented, wrong)
}

// engineEgress translates rules that the policy has allowed.
func engineEgress(resolved *policy.Resolved) ([]engine.EgressRule, error) {
	var out []engine.EgressRule
	var wrong []apierr.Violation
	refuse := func(index int, field, format string, args ...any) {
		wrong = append(wrong, apierr.Violation{
			Field:       resolved.EgressField(index) + field,
			Reason:      "CANNOT_ENFORCE",
			Description: fmt.Sprintf(format, args...),
		})
	}
	for i, rule := range resolved.Egress {
		translated := engine.EgressRule{}
		switch destination := rule.GetDestination().(type) {
		case *sandboxv1.EgressRule_Any:
			translated.Any = true
		case *sandboxv1.EgressRule_Cidr:
			prefix, except, err := prefixes(destination.Cidr)
			if err != nil {
				refuse(i, ".cidr", "%v", err)
				continue
			}
			if prefix.Addr().Is6() {
				refuse(i, ".cidr", "%q: sandboxes on this runner have no IPv6, so the rule would grant nothing; leave it out or choose another runner",
					destination.Cidr.GetCidr())
				continue
			}
			translated.Prefix, translated.Except = prefix, except
		case *sandboxv1.EgressRule_DnsName:
			refuse(i, ".dns_name", "%q: this runner cannot grant hosts by name; use cidr", destination.DnsName)
			continue
		default:
			refuse(i, "", "this runner reaches only addresses outside; use cidr or any")
			continue
		}
		for _, ports := range rule.GetPorts() {
			translated.Ports = append(translated.Ports, portRange(ports))
		}
		out = append(out, translated)
	}
	return out, apierr.Invalid(apierr.PlacementUnsatisfied, wrong)
}

func prefixes(block *sandboxv1.CidrBlock) (netip.Prefix, []netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(block.GetCidr())
	if err != nil {
		return netip.Prefix{}, nil, err
	}
	except := make([]netip.Prefix, len(block.GetExcept()))
	for i, text := range block.GetExcept() {
		if except[i], err = netip.ParsePrefix(text); err != nil {
			return netip.Prefix{}, nil, err
		}
	}
	return prefix.Masked(), except, nil
}

func portRange(ports *sandboxv1.PortRange) engine.PortRange {
	protocol := ports.GetProtocol()
	if protocol == "" {
		protocol = "TCP"
	}
	last := ports.GetEndPort()
	if last == 0 {
		last = ports.GetPort()
	}
	return engine.PortRange{Protocol: strings.ToUpper(protocol), First: uint16(ports.GetPort()), Last: uint16(last)}
}

// firstStatus is the status of a sandbox that has just been accepted.
func firstStatus(request *runnerv1.CreateSandboxRequest, resolved *policy.Resolved, runnerID, runtime string) *sandboxv1.SandboxStatus {
	status := resolved.Status(request.GetSpec(), runtime)
	status.CreateTime = request.GetCreateTime()
	status.RunnerId = runnerID
	return status
}
