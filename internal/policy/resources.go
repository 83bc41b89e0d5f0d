package policy

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// resourceRules are policy.constraints.resources, parsed.
type resourceRules struct {
	// smallest, largest, standard and ceiling are by unit.
	smallest, largest, standard, ceiling [2]bound
	// maxGPUs is nil where there is no cap.
	maxGPUs       *int64
	requireLimits bool
}

// origin is where the value of a request or a limit was written.
type origin int

const (
	fromRequests origin = iota
	fromLimits
	// fromResources: the older field that gives requests and limits at once.
	fromResources
	fromPolicy
	fromPlatform
)

// value is one request or limit of one container.
type value struct {
	bound
	origin origin
}

// location is the path of a container, written out only when it is needed.
type location struct {
	list  string
	index int
}

func (l location) String() string { return element(l.list, l.index) }

// field is the path of the place where a value of that origin was written, or
// would be.
func (l location) field(from origin, name string) string {
	switch from {
	case fromLimits:
		return l.String() + ".resource_requirements.limits." + name
	case fromResources:
		return l.String() + ".resources." + name
	default:
		return l.String() + ".resource_requirements.requests." + name
	}
}

// said names the value in a message, with where it came from when the sandbox
// does not say it.
func (v value) said() string {
	switch v.origin {
	case fromPolicy:
		return fmt.Sprintf("%q (the policy's default, as the sandbox declares none)", v.text)
	case fromPlatform:
		return fmt.Sprintf("%q (the platform's default, as neither the sandbox nor the policy gives one)", v.text)
	default:
		return fmt.Sprintf("%q", v.text)
	}
}

// declared is what a container's spec says, whichever field it used.
type declared struct {
	requests, limits *sandboxv1.Resources
	flat             bool
}

func (d declared) texts(u unit) (request, limit string) {
	if u == cpu {
		return d.requests.GetCpu(), d.limits.GetCpu()
	}
	return d.requests.GetMemory(), d.limits.GetMemory()
}

// resources resolves and checks the resources of one container.
func (r *resolver) resources(at location, spec *sandboxv1.Container, out *Container) {
	d := declared{
		requests: spec.GetResourceRequirements().GetRequests(),
		limits:   spec.GetResourceRequirements().GetLimits(),
	}
	if flat := spec.GetResources(); !empty(flat) {
		if !empty(d.requests) || !empty(d.limits) {
			r.refused.add(invalid, at.String()+".resources", "MUTUALLY_EXCLUSIVE",
				"resources and resource_requirements cannot both be set; keep resource_requirements")
		} else {
			d = declared{requests: flat, limits: flat, flat: true}
		}
	}

	requestCPU, limitCPU := r.amounts(at, cpu, d)
	requestMemory, limitMemory := r.amounts(at, memory, d)
	gpu := r.gpu(at, d)
	out.Requests = Amount{CPUMillis: requestCPU.amount, MemoryBytes: requestMemory.amount, GPUCount: gpu.GetCount()}
	out.Limits = Amount{CPUMillis: limitCPU.amount, MemoryBytes: limitMemory.amount, GPUCount: gpu.GetCount()}
	out.Requirements = &sandboxv1.ResourceRequirements{
		Requests: &sandboxv1.Resources{Cpu: requestCPU.text, Memory: requestMemory.text, Gpu: gpu},
		Limits:   &sandboxv1.Resources{Cpu: limitCPU.text, Memory: limitMemory.text, Gpu: gpu},
	}
}

// amounts resolves and checks the request and the limit of one unit.
func (r *resolver) amounts(at location, u unit, d declared) (request, limit value) {
	requestText, limitText := d.texts(u)
	r.checkDeclared(at, u, requestText != "", limitText != "")

	requestFrom, limitFrom := fromRequests, fromLimits
	if d.flat {
		requestFrom, limitFrom = fromResources, fromResources
	}
	switch {
	case requestText == "" && limitText == "":
		request = r.standard(u)
		limit = request
	case limitText == "" || d.flat:
		request = value{bound{text: requestText}, requestFrom}
		r.parse(at, u, &request)
		limit = request
	case requestText == "":
		limit = value{bound{text: limitText}, limitFrom}
		r.parse(at, u, &limit)
		request = limit
	default:
		request = value{bound{text: requestText}, requestFrom}
		limit = value{bound{text: limitText}, limitFrom}
		r.parse(at, u, &request)
		r.parse(at, u, &limit)
		if request.amount > 0 && limit.amount > 0 && request.amount > limit.amount {
			r.refused.add(invalid, at.field(fromRequests, u.String()), "REQUEST_OVER_LIMIT",
				"%q is more than the limit of %q (%s); raise the limit or ask for less",
				request.text, limit.text, at.field(fromLimits, u.String()))
		}
	}

	r.checkRange(at, u, request)
	if limit.origin != request.origin {
		r.checkRange(at, u, limit)
	}
	return request, limit
}

// standard is the default where a container declares nothing.
func (r *resolver) standard(u unit) value {
	if standard := r.policy.resources.standard[u]; standard.set() {
		return value{standard, fromPolicy}
	}
	return value{r.platform[u], fromPlatform}
}

func (r *resolver) parse(at location, u unit, v *value) {
	amount, problem := u.parse(v.text)
	if problem != "" {
		r.refused.add(invalid, at.field(v.origin, u.String()), "INVALID_QUANTITY", "%q %s", v.text, problem)
		return
	}
	v.amount = amount
}

// checkRange holds one value against the policy's minimum and maximum. A value
// that did not parse has been refused already.
func (r *resolver) checkRange(at location, u unit, v value) {
	if v.amount == 0 {
		return
	}
	if most := r.policy.resources.largest[u]; most.set() && v.amount > most.amount {
		r.refused.add(outsidePolicy, at.field(v.origin, u.String()), "MAX_"+upper(u),
			"%s is more than the policy's maximum of %q for a container (policy.constraints.resources.max_%s); ask for at most that",
			v.said(), most.text, u)
	}
	if least := r.policy.resources.smallest[u]; least.set() && v.amount < least.amount {
		r.refused.add(outsidePolicy, at.field(v.origin, u.String()), "MIN_"+upper(u),
			"%s is less than the policy's minimum of %q for a container (policy.constraints.resources.min_%s); ask for at least that",
			v.said(), least.text, u)
	}
}

// checkDeclared holds what the spec says against the rules that demand that it
// says something. A default of the policy stands for both a request and a limit;
// the runner's own switch asks for a limit from the sandbox itself.
func (r *resolver) checkDeclared(at location, u unit, request, limit bool) {
	standard := !request && !limit && r.policy.resources.standard[u].set()
	if r.policy.resources.requireLimits && !standard {
		for _, side := range []struct {
			declared bool
			origin   origin
		}{{request, fromRequests}, {limit, fromLimits}} {
			if !side.declared {
				r.refused.add(outsidePolicy, at.field(side.origin, u.String()), "REQUIRE_LIMITS",
					"must be declared: the policy demands requests and limits on every container (policy.constraints.resources.require_limits)")
			}
		}
	}
	if r.enforceLimits && !limit {
		r.refused.add(outsidePolicy, at.field(fromLimits, u.String()), "ENFORCE_RESOURCE_LIMITS",
			"must be declared: the runner takes only sandboxes that declare both a CPU and a memory limit (spec.enforce_resource_limits of the runner)")
	}
}

// gpu checks the GPUs of one container and returns what to echo.
func (r *resolver) gpu(at location, d declared) *sandboxv1.Gpu {
	gpu := d.requests.GetGpu()
	from := fromRequests
	if d.flat {
		from = fromResources
	}
	if limit := d.limits.GetGpu(); limit != nil && !proto.Equal(gpu, limit) {
		r.refused.add(invalid, at.field(fromLimits, "gpu"), "GPU_OVERCOMMIT",
			"must be the same as the requests' (%s): GPUs are taken from requests and are not overcommitted", at.field(fromRequests, "gpu"))
	}
	if gpu == nil {
		return nil
	}
	if gpu.GetCount() < 0 || gpu.GetCount() == 0 && gpu.GetSelector() != nil {
		r.refused.add(invalid, at.field(from, "gpu.count"), "INVALID_GPU_COUNT",
			"%d is not a number of GPUs; ask for at least 1, or leave gpu out", gpu.GetCount())
	}
	switch selector := gpu.GetSelector().(type) {
	case *sandboxv1.Gpu_Type:
		if selector.Type == "" {
			r.refused.add(invalid, at.field(from, "gpu.type"), "INVALID_GPU_TYPE", "must not be empty; leave it out for any type")
		}
	case *sandboxv1.Gpu_MemoryGb:
		if selector.MemoryGb < 1 {
			r.refused.add(invalid, at.field(from, "gpu.memory_gb"), "INVALID_GPU_MEMORY", "%d must be at least 1; leave it out for any size", selector.MemoryGb)
		}
	}
	if most := r.policy.resources.maxGPUs; most != nil && gpu.GetCount() > *most {
		if *most == 0 {
			r.refused.add(outsidePolicy, at.field(from, "gpu.count"), "MAX_GPU_COUNT",
				"%d: the policy allows no GPU (policy.constraints.resources.max_gpu_count is 0); leave gpu out", gpu.GetCount())
		} else {
			r.refused.add(outsidePolicy, at.field(from, "gpu.count"), "MAX_GPU_COUNT",
				"%d is more than the policy's maximum of %d for a container (policy.constraints.resources.max_gpu_count); ask for at most that",
				gpu.GetCount(), *most)
		}
	}
	return gpu
}

// checkCeilings holds the sandbox as a whole against the policy's ceilings.
// Volumes in memory count as memory.
func (r *resolver) checkCeilings(requests Amount, volumesInMemory int64) {
	total := [2]int64{requests.CPUMillis, addSaturating(requests.MemoryBytes, volumesInMemory)}
	for _, u := range []unit{cpu, memory} {
		ceiling := r.policy.resources.ceiling[u]
		if !ceiling.set() || total[u] <= ceiling.amount {
			continue
		}
		detail := ""
		if u == memory && volumesInMemory > 0 {
			detail = fmt.Sprintf(", of which %s for volumes in memory,", memory.format(volumesInMemory))
		}
		r.refused.add(overCeiling, "spec.containers", upper(u)+"_CEILING",
			"the sandbox asks for %s of %s in all%s which is more than the policy's ceiling of %q (policy.constraints.resources.%s_ceiling); ask for less",
			u.format(total[u]), u, detail, ceiling.text, u)
	}
}

// total is what containers and init containers need together: init containers
// run one after the other and before the others.
func total(containers, initContainers []Container, of func(Container) Amount) Amount {
	var sum Amount
	for _, container := range containers {
		a := of(container)
		sum.CPUMillis = addSaturating(sum.CPUMillis, a.CPUMillis)
		sum.MemoryBytes = addSaturating(sum.MemoryBytes, a.MemoryBytes)
		sum.GPUCount = addSaturating(sum.GPUCount, max(a.GPUCount, 0))
	}
	for _, container := range initContainers {
		a := of(container)
		sum.CPUMillis = max(sum.CPUMillis, a.CPUMillis)
		sum.MemoryBytes = max(sum.MemoryBytes, a.MemoryBytes)
		sum.GPUCount = max(sum.GPUCount, a.GPUCount)
	}
	return sum
}

func empty(r *sandboxv1.Resources) bool {
	return r.GetCpu() == "" && r.GetMemory() == "" && r.GetGpu() == nil
}

func upper(u unit) string {
	if u == cpu {
		return "CPU"
	}
	return "MEMORY"
}
