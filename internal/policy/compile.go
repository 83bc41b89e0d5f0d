package policy

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Compiled is a policy made ready to be held against many sandboxes. It never
// changes and may be used by several goroutines. It shares the policy's
// messages: whoever has a policy compiled must not change it afterwards.
type Compiled struct {
	resources       resourceRules
	image           imageRules
	network         networkRules
	security        securityRules
	instanceTypes   map[string]struct{}
	lifetimeSeconds int32
	metadata        metadataRules
	volumes         volumeRules
	sources         sourceRules
	baseAnnotations map[string]string
}

// Compile reads a policy. It answers with the violations that Validate finds,
// as an InvalidRequest, so that a policy with a rule that has no meaning admits
// nothing.
func Compile(p *sandboxv1.Policy) (*Compiled, error) {
	if err := apierr.Invalid(apierr.InvalidRequest, Validate(p)); err != nil {
		return nil, err
	}
	constraints := p.GetConstraints()
	c := &Compiled{
		resources:       compileResources(constraints.GetResources()),
		image:           compileImage(constraints.GetImage().GetAllowedRegistries(), constraints.GetImage().GetAllowedImages()),
		network:         compileNetwork(constraints.GetNetwork()),
		security:        compileSecurity(constraints.GetSecurity()),
		instanceTypes:   set(constraints.GetInstance().GetAllowedInstanceTypes()),
		lifetimeSeconds: int32(constraints.GetLifecycle().GetDefaultLifetimeSeconds()),
		metadata: metadataRules{
			deniedPrefixes: constraints.GetMetadata().GetDeniedAnnotationPrefixes(),
			maxCount:       constraints.GetMetadata().GetMaxAnnotationCount(),
		},
		volumes:         volumeRules{media: constraints.GetVolumes().GetAllowedMedia()},
		sources:         compileSources(p.GetControlPlaneAccess().GetSourceIpAllowlist()),
		baseAnnotations: baseAnnotations(p.GetBase()),
	}
	c.volumes.largest = compileBound(memory, constraints.GetVolumes().GetMaxSize())
	return c, nil
}

func compileResources(constraints *sandboxv1.ResourceConstraints) resourceRules {
	return resourceRules{
		smallest:      [2]bound{compileBound(cpu, constraints.GetMinCpu()), compileBound(memory, constraints.GetMinMemory())},
		largest:       [2]bound{compileBound(cpu, constraints.GetMaxCpu()), compileBound(memory, constraints.GetMaxMemory())},
		standard:      [2]bound{compileBound(cpu, constraints.GetDefaultCpu()), compileBound(memory, constraints.GetDefaultMemory())},
		ceiling:       [2]bound{compileBound(cpu, constraints.GetCpuCeiling()), compileBound(memory, constraints.GetMemoryCeiling())},
		maxGPUs:       maxGPUs(constraints),
		requireLimits: constraints.GetRequireLimits(),
	}
}

// maxGPUs keeps the difference between no cap and a cap of 0.
func maxGPUs(constraints *sandboxv1.ResourceConstraints) *int64 {
	if constraints == nil || constraints.MaxGpuCount == nil {
		return nil
	}
	most := constraints.GetMaxGpuCount()
	return &most
}

func compileBound(u unit, text string) bound {
	if text == "" {
		return bound{}
	}
	amount, _ := u.parse(text)
	return bound{text: text, amount: amount}
}
