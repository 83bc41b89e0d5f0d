package policy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// The draws below come from few values, so that specs and policies meet.

func quantities(values ...string) *rapid.Generator[string] {
	return rapid.SampledFrom(append(values, ""))
}

func cpus() *rapid.Generator[string] { return quantities("250m", "0.5", "1", "1500m", "2", "4") }

func memories() *rapid.Generator[string] {
	return quantities("64Mi", "256Mi", "512M", "1Gi", "2048Mi", "4Gi")
}

// rules are such that have no address of a guarded network: of those, a first
// entry of an envelope is a grant.
func rules() *rapid.Generator[*sandboxv1.EgressRule] {
	return rapid.Custom(func(t *rapid.T) *sandboxv1.EgressRule {
		rule := rapid.SampledFrom([]*sandboxv1.EgressRule{
			toAny(), toCIDR("203.0.113.0/24"), toCIDR("203.0.113.0/25"), toCIDR("203.0.112.0/23", "203.0.113.128/25"), toCIDR("0.0.0.0/0", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4"),
			toHost("a.example.com"), toHost("*.example.com"), toHost("b.example.org"),
			toTenant(sandboxv1.TenantScope_TENANT_SCOPE_SAME_USER), toTenant(sandboxv1.TenantScope_TENANT_SCOPE_SAME_ORG),
			toPods(map[string]string{"app": "db"}, nil), toPods(map[string]string{"app": "db", "tier": "1"}, nil),
		}).Draw(t, "destination")
		rule = proto.CloneOf(rule)
		if rule.GetDnsName() == "" {
			rule.Ports = rapid.SampledFrom([][]*sandboxv1.PortRange{nil, nil, {port("TCP", 443, 0)}, {port("TCP", 1, 1023), port("UDP", 53, 0)}}).Draw(t, "ports")
		}
		return rule
	})
}

func containers() *rapid.Generator[*sandboxv1.Container] {
	return rapid.Custom(func(t *rapid.T) *sandboxv1.Container {
		c := &sandboxv1.Container{Image: rapid.SampledFrom([]string{"python:3.11", "busybox", "ghcr.io/acme/tool:1"}).Draw(t, "image")}
		resources := func(name string) *sandboxv1.Resources {
			r := amount(cpus().Draw(t, name+" cpu"), memories().Draw(t, name+" memory"))
			if n := rapid.Int64Range(-2, 2).Draw(t, name+" gpu"); n > 0 {
				r.Gpu = &sandboxv1.Gpu{Count: n}
			}
			return r
		}
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 0:
			c.Resources = resources("flat")
		case 1:
			c.ResourceRequirements = &sandboxv1.ResourceRequirements{Requests: resources("requests")}
		case 2:
			c.ResourceRequirements = &sandboxv1.ResourceRequirements{Requests: resources("requests"), Limits: resources("limits")}
		}
		if rapid.Bool().Draw(t, "secured") {
			c.SecurityContext = &sandboxv1.SecurityContext{
				Privileged:      proto.Bool(rapid.Bool().Draw(t, "privileged")),
				CapabilitiesAdd: rapid.SliceOfN(rapid.SampledFrom([]string{"NET_ADMIN", "CAP_SYS_PTRACE"}), 0, 2).Draw(t, "capabilities"),
				SeccompProfile:  rapid.SampledFrom([]string{"", "RuntimeDefault", "Unconfined"}).Draw(t, "seccomp"),
			}
		}
		return c
	})
}

func specs() *rapid.Generator[*sandboxv1.SandboxSpec] {
	return rapid.Custom(func(t *rapid.T) *sandboxv1.SandboxSpec {
		spec := &sandboxv1.SandboxSpec{
			Containers:         rapid.SliceOfN(containers(), 1, 2).Draw(t, "containers"),
			InitContainers:     rapid.SliceOfN(containers(), 0, 1).Draw(t, "init containers"),
			MaxLifetimeSeconds: rapid.SampledFrom([]int32{0, 60, 2592000}).Draw(t, "lifetime"),
			RuntimeClass:       rapid.SampledFrom([]string{"", "", "gvisor"}).Draw(t, "runtime class"),
			InstanceType:       rapid.SampledFrom([]string{"", "small", "large"}).Draw(t, "instance type"),
			Annotations:        rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "denied/x"}), rapid.Just("v"), 0, 4).Draw(t, "annotations"),
		}
		for i, c := range spec.GetContainers() {
			c.Name = fmt.Sprintf("c%d", i)
		}
		for _, c := range spec.GetInitContainers() {
			c.Name = "init"
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "volumes") {
			medium := rapid.SampledFrom([]sandboxv1.StorageMedium{anyMedium, onDisk, inMemory}).Draw(t, "medium")
			sizes := []string{"", "128Mi", "2Gi"}
			if medium == inMemory {
				sizes = []string{"50%", "100%", "128Mi"}
			}
			spec.Volumes = append(spec.Volumes, &sandboxv1.SandboxVolume{Name: fmt.Sprintf("v%d", i), Source: &sandboxv1.SandboxVolume_Scratch{
				Scratch: &sandboxv1.ScratchVolume{Medium: medium, Size: rapid.SampledFrom(sizes).Draw(t, "size")},
			}})
		}
		switch rapid.IntRange(0, 3).Draw(t, "network") {
		case 1:
			spec.Network = &sandboxv1.NetworkOptions{DenyEgress: proto.Bool(true), DenyIngress: proto.Bool(true)}
		case 2, 3:
			spec.Network = &sandboxv1.NetworkOptions{Egress: rapid.SliceOfN(rules(), 0, 3).Draw(t, "egress")}
		}
		return spec
	})
}

func policies() *rapid.Generator[*sandboxv1.Policy] {
	return rapid.Custom(func(t *rapid.T) *sandboxv1.Policy {
		c := &sandboxv1.PolicyConstraints{
			Resources: &sandboxv1.ResourceConstraints{
				DefaultCpu: quantities("250m", "1").Draw(t, "default cpu"), DefaultMemory: quantities("256Mi", "1Gi").Draw(t, "default memory"),
				MinCpu: quantities("100m", "250m").Draw(t, "min cpu"), MinMemory: quantities("64Mi", "256Mi").Draw(t, "min memory"),
				MaxCpu: quantities("1", "2").Draw(t, "max cpu"), MaxMemory: quantities("1Gi", "2Gi").Draw(t, "max memory"),
				CpuCeiling: quantities("2", "3").Draw(t, "cpu ceiling"), MemoryCeiling: quantities("2Gi", "3Gi").Draw(t, "memory ceiling"),
				MaxGpuCount:   rapid.SampledFrom([]*int64{nil, nil, proto.Int64(0), proto.Int64(1)}).Draw(t, "max gpus"),
				RequireLimits: rapid.SampledFrom([]*bool{nil, nil, proto.Bool(true)}).Draw(t, "require limits"),
			},
			Image: &sandboxv1.ImageConstraints{
				AllowedRegistries: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"docker.io", "ghcr.io/acme"}), 0, 2, rapid.ID[string]).Draw(t, "registries"),
				AllowedImages:     rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"python", "busybox:latest", "ghcr.io/acme/tool"}), 0, 3, rapid.ID[string]).Draw(t, "images"),
			},
			Network: &sandboxv1.NetworkConstraints{
				DenyHttpsHostnameRules: rapid.SampledFrom([]*bool{nil, proto.Bool(false), proto.Bool(true)}).Draw(t, "deny names"),
				DnsEgress:              rapid.SampledFrom([]sandboxv1.DnsEgressMode{0, 1, 2}).Draw(t, "dns"),
			},
			Security: &sandboxv1.SecurityConstraints{
				AllowPrivileged:        rapid.SampledFrom([]*bool{nil, proto.Bool(true)}).Draw(t, "privileged"),
				AllowedCapabilities:    rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"NET_ADMIN", "SYS_PTRACE", "ALL"}), 0, 3, rapid.ID[string]).Draw(t, "capabilities"),
				AllowedSeccompProfiles: rapid.SampledFrom([][]string{nil, {"Unconfined"}}).Draw(t, "seccomp"),
				AllowedRuntimeClasses:  rapid.SampledFrom([][]string{nil, {"gvisor", "runc"}}).Draw(t, "classes"),
				DefaultCpuRuntimeClass: rapid.SampledFrom([]string{"", "runc"}).Draw(t, "class"),
			},
			Instance:  &sandboxv1.InstanceConstraints{AllowedInstanceTypes: rapid.SampledFrom([][]string{nil, {"small"}, {"small", "large"}}).Draw(t, "instances")},
			Lifecycle: &sandboxv1.LifecycleConstraints{DefaultLifetimeSeconds: rapid.SampledFrom([]*int64{nil, proto.Int64(0), proto.Int64(600)}).Draw(t, "lifetime")},
			Metadata: &sandboxv1.MetadataConstraints{
				DeniedAnnotationPrefixes: rapid.SampledFrom([][]string{nil, {"denied/"}}).Draw(t, "denied"),
				MaxAnnotationCount:       rapid.SampledFrom([]*int64{nil, proto.Int64(0), proto.Int64(2)}).Draw(t, "annotations"),
			},
			Volumes: &sandboxv1.VolumeConstraints{
				AllowedMedia: rapid.SampledFrom([][]sandboxv1.StorageMedium{nil, {onDisk}, {onDisk, inMemory}}).Draw(t, "media"),
				MaxSize:      quantities("1Gi").Draw(t, "max size"),
			},
		}
		for _, rule := range rapid.SliceOfN(rules(), 0, 4).Draw(t, "allowed") {
			c.Network.AllowedEgress = append(c.Network.AllowedEgress, entitle(rule))
		}
		for _, rule := range rapid.SliceOfN(rules(), 0, 1).Draw(t, "default") {
			if rule.GetDnsName() == "" {
				c.Network.DefaultEgress = append(c.Network.DefaultEgress, entitle(rule))
			}
		}
		p := constrained(c)
		if policy.Validate(p) != nil {
			t.Skip("contradicts itself")
		}
		return p
	})
}

// Equal up to what is kept for later.
func same(a, b policy.Resolved) string {
	return cmp.Diff(a, b, protocmp.Transform(), cmpopts.IgnoreUnexported(policy.Resolved{}), cmpopts.EquateEmpty())
}

func TestWhatResolvesBreaksNoRule(t *testing.T) {
	over := func(text, bound string) bool {
		if bound == "" {
			return false
		}
		value, limit := resource.MustParse(text), resource.MustParse(bound)
		return value.Cmp(limit) > 0
	}
	rapid.Check(t, func(t *rapid.T) {
		spec, p := specs().Draw(t, "spec"), policies().Draw(t, "policy")
		resolved, err := policy.Resolve(policy.Request{Spec: spec, Policy: p})
		if err != nil {
			return
		}
		c := p.GetConstraints().GetResources()
		var cpuSum, memorySum resource.Quantity
		for i, container := range slices.Concat(resolved.Containers, resolved.InitContainers) {
			requests, limits := container.Requirements.GetRequests(), container.Requirements.GetLimits()
			switch {
			case over(requests.GetCpu(), limits.GetCpu()), over(requests.GetMemory(), limits.GetMemory()):
				t.Fatalf("requests over limits: %v", container.Requirements)
			case over(limits.GetCpu(), c.GetMaxCpu()), over(limits.GetMemory(), c.GetMaxMemory()):
				t.Fatalf("over the maximum: %v", container.Requirements)
			case c.GetMinCpu() != "" && over(c.GetMinCpu(), requests.GetCpu()), c.GetMinMemory() != "" && over(c.GetMinMemory(), requests.GetMemory()):
				t.Fatalf("under the minimum: %v", container.Requirements)
			case c.MaxGpuCount != nil && requests.GetGpu().GetCount() > c.GetMaxGpuCount():
				t.Fatalf("too many GPUs: %v", container.Requirements)
			}
			if i < len(resolved.Containers) {
				cpuSum.Add(resource.MustParse(requests.GetCpu()))
				memorySum.Add(resource.MustParse(requests.GetMemory()))
			}
		}
		if over(cpuSum.String(), c.GetCpuCeiling()) || over(memorySum.String(), c.GetMemoryCeiling()) {
			t.Fatalf("over the ceiling: %s, %s", cpuSum.String(), memorySum.String())
		}
		if resolved.Requests.CPUMillis < cpuSum.MilliValue() || resolved.Requests.MemoryBytes < memorySum.Value() {
			t.Fatalf("reserves %+v for %s, %s", resolved.Requests, cpuSum.String(), memorySum.String())
		}
		if resolved.LifetimeSeconds < 1 || resolved.LifetimeSeconds > policy.MaxLifetimeSeconds {
			t.Fatalf("lives %d s", resolved.LifetimeSeconds)
		}
		if spec.GetNetwork().GetDenyEgress() && len(resolved.Egress) > 0 {
			t.Fatalf("reaches %v", resolved.Egress)
		}
	})
}

func TestTheEffectiveSpecResolvesToTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec, p := specs().Draw(t, "spec"), policies().Draw(t, "policy")
		given := proto.CloneOf(spec)
		first, err := policy.Resolve(policy.Request{Spec: spec, Policy: p})
		if err != nil {
			return
		}
		effective := first.Effective(spec)
		second, err := policy.Resolve(policy.Request{
			Spec: effective, Policy: p, EnforceResourceLimits: true,
			Defaults: policy.Defaults{CPU: "3", Memory: "3Gi", LifetimeSeconds: 7},
		})
		if err != nil {
			t.Fatalf("what was resolved is refused: %v", err)
		}
		if diff := same(first, second); diff != "" {
			t.Fatalf("(-first +second):\n%s", diff)
		}
		if diff := cmp.Diff(given, spec, protocmp.Transform()); diff != "" {
			t.Fatalf("the spec was changed:\n%s", diff)
		}
	})
}

func TestACompiledPolicySaysTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec, p := specs().Draw(t, "spec"), policies().Draw(t, "policy")
		compiled, err := policy.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := policy.Resolve(policy.Request{Spec: spec, Policy: p})
		got, gotErr := policy.Resolve(policy.Request{Spec: spec, Compiled: compiled})
		if diff := same(want, got); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
			t.Fatalf("%v, %v\n%s", wantErr, gotErr, diff)
		}
		// The names that policies had before mean the same.
		normalized, err := policy.Resolve(policy.Request{Spec: spec, Policy: policy.Normalize(p)})
		if diff := same(want, normalized); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(err) {
			t.Fatalf("normalized: %v, %v\n%s", wantErr, err, diff)
		}
	})
}

// tighten makes a policy stricter in one way, or leaves it as it is.
func tighten(t *rapid.T, p *sandboxv1.Policy) {
	c := p.GetConstraints()
	lower := func(bound *string, values ...string) {
		value := resource.MustParse(rapid.SampledFrom(values).Draw(t, "bound"))
		if *bound == "" || value.Cmp(resource.MustParse(*bound)) < 0 {
			*bound = value.String()
		}
	}
	raise := func(bound *string, values ...string) {
		value := resource.MustParse(rapid.SampledFrom(values).Draw(t, "bound"))
		if *bound == "" || value.Cmp(resource.MustParse(*bound)) > 0 {
			*bound = value.String()
		}
	}
	// An empty list restricts nothing, so one may gain a first member and lose
	// all but the last.
	shrink := func(names *[]string, first string) {
		switch len(*names) {
		case 0:
			*names = []string{first}
		case 1:
		default:
			*names = (*names)[1:]
		}
	}
	ways := []func(){
		func() { lower(&c.Resources.MaxCpu, "500m", "1") },
		func() { lower(&c.Resources.MaxMemory, "512Mi", "1Gi") },
		func() { raise(&c.Resources.MinCpu, "500m", "1") },
		func() { raise(&c.Resources.MinMemory, "512Mi", "1Gi") },
		func() { lower(&c.Resources.CpuCeiling, "500m", "1") },
		func() { lower(&c.Resources.MemoryCeiling, "512Mi", "1Gi") },
		func() { c.Resources.MaxGpuCount = proto.Int64(0) },
		func() { c.Resources.RequireLimits = proto.Bool(true) },
		func() { shrink(&c.Image.AllowedRegistries, "docker.io") },
		func() { shrink(&c.Image.AllowedImages, "python") },
		func() {
			switch allowed := c.Network.AllowedEgress; len(allowed) {
			case 0:
				c.Network.AllowedEgress = []*sandboxv1.PolicyEgressRule{entitle(rules().Draw(t, "entitlement"))}
			case 1:
				if allowed[0].GetAny() {
					allowed[0].HttpsHostnameExcept = []string{"a.example.com"}
				}
			default:
				c.Network.AllowedEgress = allowed[1:]
			}
		},
		func() { c.Network.DenyHttpsHostnameRules = proto.Bool(true) },
		func() { c.Network.DnsEgress = sandboxv1.DnsEgressMode_DNS_EGRESS_MODE_DENY },
		func() { c.Security.AllowPrivileged = proto.Bool(false) },
		func() { c.Security.AllowedCapabilities = nil },
		func() { c.Security.AllowedSeccompProfiles = nil },
		func() { c.Security.AllowedRuntimeClasses = nil },
		func() { shrink(&c.Instance.AllowedInstanceTypes, "small") },
		func() { c.Metadata.DeniedAnnotationPrefixes = append(c.Metadata.DeniedAnnotationPrefixes, "a") },
		func() {
			if c.Metadata.GetMaxAnnotationCount() != 1 {
				c.Metadata.MaxAnnotationCount = proto.Int64(1)
			}
		},
		func() { c.Volumes.AllowedMedia = []sandboxv1.StorageMedium{onDisk} },
		func() { lower(&c.Volumes.MaxSize, "64Mi", "1Gi") },
	}
	rapid.SampledFrom(ways).Draw(t, "way")()
}

func TestAddingAConstraintAdmitsNothingMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec, loose := specs().Draw(t, "spec"), policies().Draw(t, "policy")
		strict := proto.CloneOf(loose)
		tighten(t, strict)
		_, err := policy.Resolve(policy.Request{Spec: spec, Policy: loose})
		_, strictErr := policy.Resolve(policy.Request{Spec: spec, Policy: strict})
		if err != nil && strictErr == nil {
			t.Fatalf("refused, and then not: %v\nloose:  %v\nstrict: %v", err, loose, strict)
		}
	})
}

// Each fault breaks one rule, and no fault hides another.
func TestARefusalIsComplete(t *testing.T) {
	p := constrained(&sandboxv1.PolicyConstraints{
		Resources: &sandboxv1.ResourceConstraints{MaxCpu: "4", MinMemory: "128Mi", MaxGpuCount: proto.Int64(1), CpuCeiling: "3500m"},
		Image:     &sandboxv1.ImageConstraints{AllowedRegistries: []string{"docker.io"}},
		Network:   &sandboxv1.NetworkConstraints{AllowedEgress: []*sandboxv1.PolicyEgressRule{entitle(toCIDR("203.0.113.0/24"))}},
		Instance:  &sandboxv1.InstanceConstraints{AllowedInstanceTypes: []string{"small"}},
		Metadata:  &sandboxv1.MetadataConstraints{DeniedAnnotationPrefixes: []string{"denied/"}},
		Volumes:   &sandboxv1.VolumeConstraints{MaxSize: "1Gi"},
	})
	const first, second = "spec.containers[0].", "spec.containers[1]."
	faults := []struct {
		violation string
		commit    func(*sandboxv1.SandboxSpec)
	}{
		{"spec.containers CPU_CEILING", func(s *sandboxv1.SandboxSpec) {
			s.Containers[1].ResourceRequirements.Requests.Cpu, s.Containers[1].ResourceRequirements.Limits.Cpu = "3", "4"
		}},
		{first + "resource_requirements.limits.cpu MAX_CPU", func(s *sandboxv1.SandboxSpec) { s.Containers[0].ResourceRequirements.Limits.Cpu = "5" }},
		{first + "resource_requirements.requests.memory MIN_MEMORY", func(s *sandboxv1.SandboxSpec) { s.Containers[0].ResourceRequirements.Requests.Memory = "64Mi" }},
		{first + "resource_requirements.requests.gpu.count MAX_GPU_COUNT", func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].ResourceRequirements.Requests.Gpu = &sandboxv1.Gpu{Count: 2}
		}},
		{second + "resource_requirements.limits.memory INVALID_QUANTITY", func(s *sandboxv1.SandboxSpec) { s.Containers[1].ResourceRequirements.Limits.Memory = "lots" }},
		{first + "image ALLOWED_REGISTRIES", func(s *sandboxv1.SandboxSpec) { s.Containers[0].Image = "ghcr.io/acme/tool" }},
		{second + "image INVALID_IMAGE", func(s *sandboxv1.SandboxSpec) { s.Containers[1].Image = "?" }},
		{first + "security_context.privileged ALLOW_PRIVILEGED", func(s *sandboxv1.SandboxSpec) { s.Containers[0].SecurityContext.Privileged = proto.Bool(true) }},
		{first + "security_context.capabilities_add[0] ALLOWED_CAPABILITIES", func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].SecurityContext.CapabilitiesAdd = []string{"SYS_ADMIN"}
		}},
		{first + "security_context.seccomp_profile ALLOWED_SECCOMP_PROFILES", func(s *sandboxv1.SandboxSpec) { s.Containers[0].SecurityContext.SeccompProfile = "Unconfined" }},
		{"spec.network.egress[0] ALLOWED_EGRESS", func(s *sandboxv1.SandboxSpec) { s.Network.Egress[0] = toAny() }},
		{"spec.network.egress[1].cidr.cidr INVALID_CIDR", func(s *sandboxv1.SandboxSpec) { s.Network.Egress[1] = toCIDR("203.0.113.1/24") }},
		{"spec.max_lifetime_seconds MAX_LIFETIME", func(s *sandboxv1.SandboxSpec) { s.MaxLifetimeSeconds = 1 << 30 }},
		{"spec.runtime_class ALLOWED_RUNTIME_CLASSES", func(s *sandboxv1.SandboxSpec) { s.RuntimeClass = "runc" }},
		{"spec.instance_type ALLOWED_INSTANCE_TYPES", func(s *sandboxv1.SandboxSpec) { s.InstanceType = "large" }},
		{`spec.annotations["denied/x"] DENIED_ANNOTATION_PREFIX`, func(s *sandboxv1.SandboxSpec) { s.Annotations = map[string]string{"denied/x": "y"} }},
		{"spec.volumes[0].scratch.size MAX_SIZE", func(s *sandboxv1.SandboxSpec) { s.Volumes[0].GetScratch().Size = "2Gi" }},
		{"spec.primary_container UNKNOWN_CONTAINER", func(s *sandboxv1.SandboxSpec) { s.PrimaryContainer = "other" }},
	}
	compiled, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		requirements := func() *sandboxv1.ResourceRequirements {
			return &sandboxv1.ResourceRequirements{Requests: amount("1", "256Mi"), Limits: amount("1", "1Gi")}
		}
		spec := sandbox(scratch("1Gi", onDisk), func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].ResourceRequirements = requirements()
			s.Containers[0].SecurityContext = &sandboxv1.SecurityContext{}
			s.Containers = append(s.Containers, &sandboxv1.Container{Name: "side", Image: "busybox", ResourceRequirements: requirements()})
			s.Network = &sandboxv1.NetworkOptions{Egress: []*sandboxv1.EgressRule{toCIDR("203.0.113.0/25"), toCIDR("203.0.113.128/25")}}
		})
		var want []string
		for _, fault := range faults {
			if rapid.Bool().Draw(rt, fault.violation) {
				fault.commit(spec)
				want = append(want, fault.violation)
			}
		}
		_, err := policy.Resolve(policy.Request{Spec: spec, Compiled: compiled})
		_, got := refusalOf(t, err)
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
