package spec_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/spec"
)

func noEnvironment(string) string { return "" }

func TestFlagsBecomeASpecification(t *testing.T) {
	flags := spec.Flags{
		Env: []string{"A=1", "B=x=y", "EMPTY=", "HOME"}, CPU: "500m", Memory: "1Gi", GPU: "2:H100",
		Lifetime: 90 * time.Second, Tags: []string{"build"}, Runners: []string{"r1"}, WorkDir: "/work",
		Egress: []string{"any:443", "192.0.2.0/24", "198.51.100.7:8000-8010", "2001:db8::/32", "[2001:db8::1]:53"},
	}
	got, err := flags.Build("busybox:1", []string{"sleep", "60"}, func(name string) string { return "value-of-" + name })
	if err != nil {
		t.Fatal(err)
	}
	amount := &sandboxv1.Resources{Cpu: "500m", Memory: "1Gi", Gpu: &sandboxv1.Gpu{Count: 2, Selector: &sandboxv1.Gpu_Type{Type: "H100"}}}
	cidr := func(text string, ports ...*sandboxv1.PortRange) *sandboxv1.EgressRule {
		return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Cidr{Cidr: &sandboxv1.CidrBlock{Cidr: text}}, Ports: ports}
	}
	want := &sandboxv1.SandboxSpec{
		Containers: []*sandboxv1.Container{{
			Name: "main", Image: "busybox:1", Command: "sleep", Args: []string{"60"}, WorkingDir: "/work",
			EnvironmentVariables: map[string]string{"A": "1", "B": "x=y", "EMPTY": "", "HOME": "value-of-HOME"},
			ResourceRequirements: &sandboxv1.ResourceRequirements{Requests: amount, Limits: amount},
		}},
		PrimaryContainer: "main", MaxLifetimeSeconds: 90, Tags: []string{"build"},
		Mode: sandboxv1.SandboxMode_SANDBOX_MODE_CKS, RunnerIds: []string{"r1"},
		Network: &sandboxv1.NetworkOptions{Egress: []*sandboxv1.EgressRule{
			{Destination: &sandboxv1.EgressRule_Any{Any: true}, Ports: []*sandboxv1.PortRange{{Protocol: "TCP", Port: 443}}},
			cidr("192.0.2.0/24"),
			cidr("198.51.100.7/32", &sandboxv1.PortRange{Protocol: "TCP", Port: 8000, EndPort: 8010}),
			cidr("2001:db8::/32"),
			cidr("2001:db8::1/128", &sandboxv1.PortRange{Protocol: "TCP", Port: 53}),
		}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("specification (-want +got):\n%s", diff)
	}
}

func TestFlagsThatAreNotGivenAreNotSet(t *testing.T) {
	got, err := (&spec.Flags{}).Build("busybox:1", nil, noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	want := &sandboxv1.SandboxSpec{Containers: []*sandboxv1.Container{{Name: "main", Image: "busybox:1"}}, PrimaryContainer: "main"}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("specification (-want +got):\n%s", diff)
	}
}

func TestEgressNoneForbidsAll(t *testing.T) {
	got, err := (&spec.Flags{Egress: []string{"none"}}).Build("busybox:1", nil, noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&sandboxv1.NetworkOptions{DenyEgress: proto.Bool(true)}, got.GetNetwork(), protocmp.Transform()); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
}

func TestBadFlagsAreUsageErrors(t *testing.T) {
	for name, flags := range map[string]spec.Flags{
		"variable without a name":       {Env: []string{"=x"}},
		"GPU count that is no number":   {GPU: "two"},
		"GPU type that is empty":        {GPU: "1:"},
		"lifetime below a second":       {Lifetime: time.Millisecond},
		"negative lifetime":             {Lifetime: -time.Second},
		"none beside another rule":      {Egress: []string{"none", "any"}},
		"host name":                     {Egress: []string{"example.com"}},
		"bits beyond the mask":          {Egress: []string{"192.0.2.1/24"}},
		"port 0":                        {Egress: []string{"any:0"}},
		"port over 65535":               {Egress: []string{"any:65536"}},
		"range of ports that runs back": {Egress: []string{"any:9-8"}},
		"bracket that is not closed":    {Egress: []string{"[2001:db8::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := flags.Build("busybox:1", nil, noEnvironment)
			if usage := new(*invocation.UsageError); !errors.As(err, usage) {
				t.Errorf("Build = %v, want a usage error", err)
			}
		})
	}
}

func TestAnyTextIsARuleOrAnError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(any|none|\[?[0-9a-f.:]{0,12}(/[0-9]{1,3})?\]?)(:[0-9-]{0,6})?`).Draw(t, "rule")
		got, err := (&spec.Flags{Egress: []string{text}}).Build("busybox:1", nil, noEnvironment)
		if err == nil && len(got.GetNetwork().GetEgress()) == 0 && !got.GetNetwork().GetDenyEgress() {
			t.Fatalf("%q was accepted and means nothing", text)
		}
	})
}
