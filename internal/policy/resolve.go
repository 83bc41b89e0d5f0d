package policy

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// Resolve fills in what the spec leaves open and checks the result. Its error
// comes from apierr and has one violation for every rule that is broken, each
// naming the field ("spec.containers[0].resource_requirements.requests.cpu"),
// the value, the limit, and the rule ("policy.constraints.resources.max_cpu").
//
// The error's reason is InvalidRequest when something has no meaning or is
// allowed under no policy; else PolicyViolation; or ResourceCeilingExceeded
// when ceilings are all that is broken. It is PlacementRejected when there is
// no policy at all.
func Resolve(req Request) (Resolved, error) {
	if req.Spec == nil {
		return Resolved{}, apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{{
			Field: "spec", Description: "is required", Reason: "REQUIRED",
		}})
	}
	compiled := req.Compiled
	if compiled == nil {
		if req.Policy == nil {
			return Resolved{}, apierr.New(apierr.PlacementRejected,
				"the runner has no policy yet, and takes no sandbox without one; set a policy on the runner")
		}
		var err error
		if compiled, err = Compile(req.Policy); err != nil {
			return Resolved{}, err
		}
	}

	r := resolver{policy: compiled, enforceLimits: req.EnforceResourceLimits}
	defaults := req.Defaults.orPlatform()
	r.platform[cpu].text, r.platform[memory].text = defaults.CPU, defaults.Memory
	for u := range r.platform {
		amount, problem := unit(u).parse(r.platform[u].text)
		if problem != "" {
			return Resolved{}, apierr.New(apierr.Internal,
				"the platform's default %s %q %s; correct the server's configuration", unit(u), r.platform[u].text, problem)
		}
		r.platform[u].amount = amount
	}
	out := r.resolve(req.Spec, defaults)
	if err := r.refused.err(); err != nil {
		return Resolved{}, err
	}
	return out, nil
}

// resolver is one call of Resolve.
type resolver struct {
	policy        *Compiled
	enforceLimits bool
	// platform is the platform's default by unit.
	platform [2]bound
	refused  refusal
}

func (r *resolver) resolve(spec *sandboxv1.SandboxSpec, defaults Defaults) Resolved {
	if !r.checkSizes(spec) {
		return Resolved{}
	}
	r.checkStructure(spec)

	out := Resolved{
		Containers:     r.containers("spec.containers", spec.GetContainers()),
		InitContainers: r.containers("spec.init_containers", spec.GetInitContainers()),
		Primary:        r.primary(spec),
	}
	out.Requests = total(out.Containers, out.InitContainers, func(c Container) Amount { return c.Requests })
	out.Limits = total(out.Containers, out.InitContainers, func(c Container) Amount { return c.Limits })

	var inMemory int64
	out.Volumes, inMemory = r.volumes(spec.GetVolumes(), out.Requests.MemoryBytes)
	r.checkCeilings(out.Requests, inMemory)

	out.LifetimeSeconds = r.lifetime(spec.GetMaxLifetimeSeconds(), defaults)
	r.network(spec.GetNetwork(), &out)
	out.RuntimeClass = r.runtimeClass(spec.GetRuntimeClass(), out.Requests.GPUCount > 0)
	r.instanceType(spec.GetInstanceType())
	r.annotations(spec.GetAnnotations())
	out.annotations, out.baseAnnotations = spec.GetAnnotations(), r.policy.baseAnnotations
	return out
}

func (r *resolver) containers(list string, specs []*sandboxv1.Container) []Container {
	if len(specs) == 0 {
		return nil
	}
	out := make([]Container, len(specs))
	for i, spec := range specs {
		at := location{list: list, index: i}
		out[i].Name = spec.GetName()
		out[i].Image = r.image(at, spec.GetImage())
		r.resources(at, spec, &out[i])
		r.security(at, spec.GetSecurityContext())
	}
	return out
}
