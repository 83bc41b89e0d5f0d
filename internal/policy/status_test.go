package policy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/policy"
)

func TestStatusEchoesWhatWasResolvedInTheWordsThatWereGiven(t *testing.T) {
	gpu := &sandboxv1.Gpu{Count: 1}
	spec := sandbox(func(s *sandboxv1.SandboxSpec) {
		s.MaxLifetimeSeconds = 60
		s.Services = []*sandboxv1.Service{{Port: 8080, Name: "http"}}
		s.Containers[0].Name = "main"
		s.Containers[0].ResourceRequirements = &sandboxv1.ResourceRequirements{
			Requests: &sandboxv1.Resources{Cpu: "500m", Memory: "0.5Gi", Gpu: gpu},
			Limits:   &sandboxv1.Resources{Cpu: "1", Memory: "1Gi"},
		}
	})
	resolved, err := policy.Resolve(policy.Request{Spec: spec, Policy: &sandboxv1.Policy{}})
	if err != nil {
		t.Fatal(err)
	}
	limits := &sandboxv1.Resources{Cpu: "1", Memory: "1Gi", Gpu: gpu}
	want := &sandboxv1.SandboxStatus{
		State:              sandboxv1.State_STATE_CREATING,
		EffectiveResources: limits,
		EffectiveResourceRequirements: &sandboxv1.ResourceRequirements{
			Requests: &sandboxv1.Resources{Cpu: "500m", Memory: "0.5Gi", Gpu: gpu}, Limits: limits,
		},
		EffectiveMaxLifetimeSeconds: 60,
		EffectiveRuntimeClass:       "gvisor",
		ContainerStatuses:           []*sandboxv1.ContainerStatus{{Name: "main", State: sandboxv1.State_STATE_CREATING}},
		Services:                    []*sandboxv1.ServiceStatus{{Port: 8080, Name: "http"}},
	}
	if diff := cmp.Diff(want, resolved.Status(spec, "gvisor"), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheRuntimeClassIsThePinOrThePolicysOrTheRunnersOwn(t *testing.T) {
	securing := func(c *sandboxv1.SecurityConstraints) *sandboxv1.Policy {
		return constrained(&sandboxv1.PolicyConstraints{Security: c})
	}
	mapped := &sandboxv1.RuntimeClassMapping{
		RuntimeClass: sandboxv1.RuntimeClass_RUNTIME_CLASS_CPU_DEFAULT,
		Target:       &sandboxv1.RuntimeClassMapping_NodeDefault{NodeDefault: true},
	}
	for name, test := range map[string]struct {
		pin    string
		policy *sandboxv1.Policy
		want   string
	}{
		"the pin":                            {"kata", securing(&sandboxv1.SecurityConstraints{AllowedRuntimeClasses: []string{"kata"}}), "kata"},
		"the policy's":                       {"", securing(&sandboxv1.SecurityConstraints{DefaultCpuRuntimeClass: "runc"}), "runc"},
		"what the node runs":                 {"", securing(&sandboxv1.SecurityConstraints{RuntimeClassMappings: []*sandboxv1.RuntimeClassMapping{mapped}}), policy.NodeDefault},
		"the runner's own, for want of both": {"", &sandboxv1.Policy{}, "runsc"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := sandbox(func(s *sandboxv1.SandboxSpec) { s.RuntimeClass = test.pin })
			resolved, err := policy.Resolve(policy.Request{Spec: spec, Policy: test.policy})
			if err != nil {
				t.Fatal(err)
			}
			if got := resolved.Status(spec, "runsc").GetEffectiveRuntimeClass(); got != test.want {
				t.Errorf("class %q; want %q", got, test.want)
			}
		})
	}
}
