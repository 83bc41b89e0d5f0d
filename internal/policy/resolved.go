package policy

import (
	"maps"
	"strings"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// NodeDefault is the runtime class of a sandbox that a policy maps to whatever
// the node runs by default: no Kubernetes RuntimeClass is assigned.
const NodeDefault = "<node-default>"

// Amount is what quantities parse to. A zero GPUCount means no GPU; CPUMillis
// and MemoryBytes of a resolved container are never zero.
type Amount struct {
	// CPUMillis is in thousandths of a core, rounded up.
	CPUMillis   int64
	MemoryBytes int64
	GPUCount    int64
}

// Container is one container with nothing left open.
type Container struct {
	Name string
	// Image is the canonical reference: registry, full path, and a tag or a
	// digest ("docker.io/library/python:3.11").
	Image string
	// Requirements is what to echo: the strings as they were given, by the
	// sandbox, the policy's defaults or the platform's.
	Requirements *sandboxv1.ResourceRequirements
	// Requests and Limits are the same, parsed. Requests are at most Limits.
	Requests Amount
	Limits   Amount
}

// Volume is one scratch volume with nothing left open.
type Volume struct {
	Name   string
	Medium sandboxv1.StorageMedium
	// SizeBytes is 0 for a volume on disk without a bound.
	SizeBytes int64
}

// Resolved is a sandbox with nothing left open, inside its policy. It shares
// messages with the request and with the policy: read only.
type Resolved struct {
	Containers     []Container
	InitContainers []Container
	// Primary is the index in Containers of the primary one.
	Primary int
	// Requests is what to reserve, Limits what the processes of the sandbox may
	// use together: for each resource the sum over the containers, or the
	// largest init container where that is more. A volume in memory is used up
	// from its containers' memory limits, and is not added here.
	Requests Amount
	Limits   Amount
	// Volumes are the scratch volumes.
	Volumes         []Volume
	LifetimeSeconds int32
	// Egress is what the sandbox may reach, as echoed; empty: nothing.
	Egress []*sandboxv1.EgressRule
	// DNS says whether the sandbox may ask the platform's resolvers.
	DNS bool
	// Ingress is who may reach the sandbox's ports of visibility CUSTOM.
	Ingress []*sandboxv1.IngressRule
	// RuntimeClass is the one pinned or the policy's; empty: the runner's own
	// choice.
	RuntimeClass string

	annotations, baseAnnotations map[string]string
	// defaultEgress: Egress is the policy's default.
	defaultEgress bool
}

// Annotations are the sandbox's, with those of the policy's base over them. The
// map is the caller's own.
func (r *Resolved) Annotations() map[string]string {
	out := make(map[string]string, len(r.annotations)+len(r.baseAnnotations))
	maps.Copy(out, r.annotations)
	maps.Copy(out, r.baseAnnotations)
	return out
}

// NamesHosts says whether the sandbox is granted hosts by name, which needs a
// runner that can enforce that; others must refuse it.
func (r *Resolved) NamesHosts() bool {
	for _, rule := range r.Egress {
		if rule.GetDnsName() != "" {
			return true
		}
	}
	return false
}

// EgressField is where rule i of Egress was written.
func (r *Resolved) EgressField(i int) string {
	if r.defaultEgress {
		return element("policy.constraints.network.default_egress", i)
	}
	return element("spec.network.egress", i)
}

// IPv6 is the field of the first egress rule to a network of IPv6, which needs
// a runner that has IPv6; empty: there is none.
func (r *Resolved) IPv6() string {
	for i, rule := range r.Egress {
		// Every IPv6 network has a colon, and no other.
		if strings.Contains(rule.GetCidr().GetCidr(), ":") {
			return r.EgressField(i) + ".cidr"
		}
	}
	return ""
}

// Effective is spec with the resources, the lifetime and the network rules that
// Resolve filled in; it resolves to the same again. The runtime class stays as
// it was asked for: the policy's own choice is not something that every caller
// could pin.
func (r *Resolved) Effective(spec *sandboxv1.SandboxSpec) *sandboxv1.SandboxSpec {
	out := proto.CloneOf(spec)
	fill(out.GetContainers(), r.Containers)
	fill(out.GetInitContainers(), r.InitContainers)
	out.MaxLifetimeSeconds = r.LifetimeSeconds
	if len(r.Egress) > 0 || len(r.Ingress) > 0 {
		if out.Network == nil {
			out.Network = &sandboxv1.NetworkOptions{}
		}
		out.Network.Egress = r.Egress
		out.Network.Ingress = r.Ingress
	}
	return out
}

func fill(containers []*sandboxv1.Container, resolved []Container) {
	for i, container := range containers {
		container.Resources = nil
		container.ResourceRequirements = resolved[i].Requirements
	}
}
