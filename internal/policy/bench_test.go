package policy_test

import (
	"fmt"
	"testing"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// large is the full policy with n more entries in every list that a sandbox is
// held against.
func large(t testing.TB, n int) *policy.Compiled {
	p := parsePolicy(t, full)
	c := p.GetConstraints()
	for i := range n {
		c.Image.AllowedRegistries = append(c.Image.AllowedRegistries, fmt.Sprintf("registry-%d.example.com/team", i))
		c.Image.AllowedImages = append(c.Image.AllowedImages, fmt.Sprintf("registry-%d.example.com/team/image", i))
		c.Network.AllowedEgress = append(c.Network.AllowedEgress,
			entitle(on(toCIDR(fmt.Sprintf("172.16.%d.0/24", i%256)), port("TCP", 443, 0))), entitle(toHost(fmt.Sprintf("*.team-%d.example.com", i))))
		c.Security.AllowedRuntimeClasses = append(c.Security.AllowedRuntimeClasses, fmt.Sprintf("class-%d", i))
		c.Instance.AllowedInstanceTypes = append(c.Instance.AllowedInstanceTypes, fmt.Sprintf("type-%d", i))
		c.Metadata.DeniedAnnotationPrefixes = append(c.Metadata.DeniedAnnotationPrefixes, fmt.Sprintf("denied-%d/", i))
	}
	// What the sandbox below asks for comes last.
	c.Network.AllowedEgress = append(c.Network.AllowedEgress, entitle(toCIDR("192.168.0.0/16", "192.168.1.0/24")))
	compiled, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// typical is a spec that touches every kind of rule.
func typical() *sandboxv1.SandboxSpec {
	return sandbox(asking(amount("500m", "512Mi"), amount("1", "1Gi")), scratch("10Gi", onDisk), func(s *sandboxv1.SandboxSpec) {
		s.RuntimeClass, s.InstanceType = "gvisor", "cd-gp-i64-erapids"
		s.Annotations = map[string]string{"a": "1", "b": "2"}
		s.Containers[0].SecurityContext = &sandboxv1.SecurityContext{CapabilitiesAdd: []string{"NET_BIND_SERVICE"}}
		s.Containers[0].VolumeMounts = []*sandboxv1.VolumeMount{{Volume: "v0", MountPath: "/data"}}
		s.Network = &sandboxv1.NetworkOptions{Egress: []*sandboxv1.EgressRule{
			toHost("pypi.org"), toCIDR("192.168.2.0/24"), on(toCIDR("10.2.0.0/16"), port("TCP", 443, 0)),
		}}
	})
}

func BenchmarkResolve(b *testing.B) {
	for _, entries := range []int{0, 100, 1000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			compiled, spec := large(b, entries), typical()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := policy.Resolve(policy.Request{Spec: spec, Compiled: compiled}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	p := parsePolicy(b, full)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := policy.Compile(p); err != nil {
			b.Fatal(err)
		}
	}
}

func TestResolvingAllocatesNothingThatGrowsWithThePolicy(t *testing.T) {
	spec := typical()
	allocations := func(entries int) float64 {
		compiled := large(t, entries)
		return testing.AllocsPerRun(100, func() {
			if _, err := policy.Resolve(policy.Request{Spec: spec, Compiled: compiled}); err != nil {
				t.Fatal(err)
			}
		})
	}
	// A pool that the garbage collector emptied costs an allocation now and then;
	// growth would cost hundreds.
	const noise, entries = 10, 1000
	if small, big := allocations(0), allocations(entries); big > small+noise {
		t.Errorf("%v allocations under a large policy, %v under a small one", big, small)
	}
}
