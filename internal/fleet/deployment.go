package fleet

import (
	"maps"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// maskedValue is what the API shows in place of an environment value, which
// may be a secret.
const maskedValue = "•••"

// resolveDeployment lays the overrides over the release's defaults. Maps are
// merged key by key; all else is replaced whole.
func resolveDeployment(release Release, overrides *sandboxv1.RunnerOverrides) *sandboxv1.DeploymentSpec {
	resolved := &sandboxv1.DeploymentSpec{}
	if release.Deployment != nil {
		proto.Merge(resolved, release.Deployment)
	}
	if overrides == nil {
		return resolved
	}
	overrides = proto.Clone(overrides).(*sandboxv1.RunnerOverrides)
	resolved.NodeSelector = overlay(resolved.NodeSelector, overrides.NodeSelector)
	resolved.Annotations = overlay(resolved.Annotations, overrides.Annotations)
	resolved.Labels = overlay(resolved.Labels, overrides.Labels)
	resolved.Env = overlay(resolved.Env, overrides.Env)
	if len(overrides.Tolerations) > 0 {
		resolved.Tolerations = overrides.Tolerations
	}
	if len(overrides.Args) > 0 {
		resolved.Args = overrides.Args
	}
	if overrides.Resources != nil {
		resolved.Resources = overrides.Resources
	}
	if overrides.Scaling != nil {
		resolved.Scaling = overrides.Scaling
	}
	if overrides.CpuRuntimeClass != "" {
		resolved.CpuRuntimeClass = overrides.CpuRuntimeClass
	}
	if overrides.GpuRuntimeClass != "" {
		resolved.GpuRuntimeClass = overrides.GpuRuntimeClass
	}
	if overrides.Affinity != nil {
		resolved.Affinity = overrides.Affinity
	}
	return resolved
}

func overlay(base, over map[string]string) map[string]string {
	if len(over) == 0 {
		return base
	}
	merged := maps.Clone(base)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, over)
	return merged
}

// withGateway adds where the runner dials. That belongs to the server and not
// to the revision, so that a server that moves takes its runners along.
func withGateway(deployment *sandboxv1.DeploymentSpec, gatewayServer string) *sandboxv1.DeploymentSpec {
	out := proto.Clone(deployment).(*sandboxv1.DeploymentSpec)
	out.GatewayServer = gatewayServer
	return out
}

// masked hides the values of the environment.
func masked(deployment *sandboxv1.DeploymentSpec) *sandboxv1.DeploymentSpec {
	for name := range deployment.GetEnv() {
		deployment.Env[name] = maskedValue
	}
	return deployment
}
