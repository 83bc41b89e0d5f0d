package policy_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// sandbox is a sound spec of one container.
func sandbox(changes ...func(*sandboxv1.SandboxSpec)) *sandboxv1.SandboxSpec {
	spec := &sandboxv1.SandboxSpec{
		Containers:       []*sandboxv1.Container{{Name: "main", Image: "python:3.11"}},
		PrimaryContainer: "main",
	}
	for _, change := range changes {
		change(spec)
	}
	return spec
}

func asking(requests, limits *sandboxv1.Resources) func(*sandboxv1.SandboxSpec) {
	return func(spec *sandboxv1.SandboxSpec) {
		spec.Containers[0].ResourceRequirements = &sandboxv1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func amount(cpu, memory string) *sandboxv1.Resources {
	return &sandboxv1.Resources{Cpu: cpu, Memory: memory}
}

func gpus(n int64) *sandboxv1.Resources {
	return &sandboxv1.Resources{Gpu: &sandboxv1.Gpu{Count: n}}
}

func constrained(c *sandboxv1.PolicyConstraints) *sandboxv1.Policy {
	return &sandboxv1.Policy{Constraints: c}
}

func limiting(c *sandboxv1.ResourceConstraints) *sandboxv1.Policy {
	return constrained(&sandboxv1.PolicyConstraints{Resources: c})
}

// refusalOf is the reason and "field RULE" for each violation of an error.
func refusalOf(t *testing.T, err error) (apierr.Reason, []string) {
	t.Helper()
	if err == nil {
		return "", nil
	}
	var own *apierr.Error
	if !errors.As(err, &own) {
		t.Fatalf("%v is not an error of apierr", err)
	}
	var rules []string
	for _, v := range own.Violations() {
		rules = append(rules, v.Field+" "+v.Reason)
	}
	return own.Reason(), rules
}

func TestResourcesAreFilledIn(t *testing.T) {
	standard := limiting(&sandboxv1.ResourceConstraints{DefaultCpu: "2", DefaultMemory: "4Gi"})
	tests := []struct {
		name             string
		policy           *sandboxv1.Policy
		spec             *sandboxv1.SandboxSpec
		requests, limits *sandboxv1.Resources
		parsed           policy.Amount
	}{
		{
			"the platform's default where nobody says anything", &sandboxv1.Policy{}, sandbox(),
			amount("1", "1Gi"), amount("1", "1Gi"),
			policy.Amount{CPUMillis: 1000, MemoryBytes: 1 << 30},
		},
		{
			"the policy's default before the platform's", standard, sandbox(),
			amount("2", "4Gi"), amount("2", "4Gi"),
			policy.Amount{CPUMillis: 2000, MemoryBytes: 4 << 30},
		},
		{
			"the sandbox's own before the policy's", standard, sandbox(asking(amount("500m", "512Mi"), amount("1", "1Gi"))),
			amount("500m", "512Mi"), amount("1", "1Gi"),
			policy.Amount{CPUMillis: 500, MemoryBytes: 512 << 20},
		},
		{
			"limits equal to requests when left out", standard, sandbox(asking(amount("500m", "512Mi"), nil)),
			amount("500m", "512Mi"), amount("500m", "512Mi"),
			policy.Amount{CPUMillis: 500, MemoryBytes: 512 << 20},
		},
		{
			"requests equal to limits when left out", standard, sandbox(asking(nil, amount("500m", "512Mi"))),
			amount("500m", "512Mi"), amount("500m", "512Mi"),
			policy.Amount{CPUMillis: 500, MemoryBytes: 512 << 20},
		},
		{
			"each resource on its own", standard, sandbox(asking(amount("500m", ""), nil)),
			amount("500m", "4Gi"), amount("500m", "4Gi"),
			policy.Amount{CPUMillis: 500, MemoryBytes: 4 << 30},
		},
		{
			"the older field gives both", standard, sandbox(func(s *sandboxv1.SandboxSpec) { s.Containers[0].Resources = amount("0.25", "1e9") }),
			amount("0.25", "1e9"), amount("0.25", "1e9"),
			policy.Amount{CPUMillis: 250, MemoryBytes: 1e9},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resolved, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			if err != nil {
				t.Fatal(err)
			}
			got := resolved.Containers[0]
			want := &sandboxv1.ResourceRequirements{Requests: test.requests, Limits: test.limits}
			if diff := cmp.Diff(want, got.Requirements, protocmp.Transform()); diff != "" {
				t.Errorf("echo (-want +got):\n%s", diff)
			}
			if got.Requests != test.parsed || resolved.Requests != test.parsed {
				t.Errorf("requests %+v, total %+v; want %+v", got.Requests, resolved.Requests, test.parsed)
			}
		})
	}
}

func TestResourcesAreHeldAgainstThePolicy(t *testing.T) {
	const at = "spec.containers[0]."
	rules := func(change func(*sandboxv1.ResourceConstraints)) *sandboxv1.Policy {
		c := &sandboxv1.ResourceConstraints{}
		change(c)
		return limiting(c)
	}
	maximum := rules(func(c *sandboxv1.ResourceConstraints) { c.MaxCpu, c.MaxMemory = "4", "8Gi" })
	minimum := rules(func(c *sandboxv1.ResourceConstraints) { c.MinCpu, c.MinMemory = "500m", "256Mi" })
	ceiling := rules(func(c *sandboxv1.ResourceConstraints) { c.CpuCeiling, c.MemoryCeiling = "3", "6Gi" })
	limits := rules(func(c *sandboxv1.ResourceConstraints) { c.RequireLimits = proto.Bool(true) })
	noGPU := rules(func(c *sandboxv1.ResourceConstraints) { c.MaxGpuCount = proto.Int64(0) })
	twoGPUs := rules(func(c *sandboxv1.ResourceConstraints) { c.MaxGpuCount = proto.Int64(2) })
	second := func(s *sandboxv1.SandboxSpec) {
		s.Containers = append(s.Containers, &sandboxv1.Container{Name: "side", Image: "busybox:1", Resources: amount("2", "4Gi")})
	}
	initial := func(s *sandboxv1.SandboxSpec) {
		s.InitContainers = append(s.InitContainers, &sandboxv1.Container{Name: "init", Image: "busybox:1", Resources: amount("4", "4Gi")})
	}

	tests := []struct {
		name   string
		policy *sandboxv1.Policy
		spec   *sandboxv1.SandboxSpec
		reason apierr.Reason
		rules  []string
	}{
		{"exactly the maximum is allowed", maximum, sandbox(asking(amount("4", "8Gi"), nil)), "", nil},
		{
			"a request over the maximum is refused once", maximum, sandbox(asking(amount("4001m", "1Gi"), nil)),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.requests.cpu MAX_CPU"},
		},
		{
			"a limit over the maximum is refused", maximum, sandbox(asking(amount("1", "1Gi"), amount("1", "9Gi"))),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.limits.memory MAX_MEMORY"},
		},
		{
			"every field over the maximum is named", maximum, sandbox(asking(amount("5", "9Gi"), amount("6", "10Gi"))),
			apierr.PolicyViolation,
			[]string{
				at + "resource_requirements.requests.cpu MAX_CPU", at + "resource_requirements.limits.cpu MAX_CPU",
				at + "resource_requirements.requests.memory MAX_MEMORY", at + "resource_requirements.limits.memory MAX_MEMORY",
			},
		},
		{
			"the older field is named as it was written", maximum, sandbox(func(s *sandboxv1.SandboxSpec) { s.Containers[0].Resources = amount("8", "1Gi") }),
			apierr.PolicyViolation,
			[]string{at + "resources.cpu MAX_CPU"},
		},
		{
			"the platform's default is held against the maximum too", rules(func(c *sandboxv1.ResourceConstraints) { c.MaxCpu = "500m" }), sandbox(),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.requests.cpu MAX_CPU"},
		},
		{"exactly the minimum is allowed", minimum, sandbox(asking(amount("0.5", "256Mi"), nil)), "", nil},
		{
			"less than the minimum is refused", minimum, sandbox(asking(amount("499m", "255Mi"), amount("1", "1Gi"))),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.requests.cpu MIN_CPU", at + "resource_requirements.requests.memory MIN_MEMORY"},
		},
		{
			"a request over its limit is refused", &sandboxv1.Policy{}, sandbox(asking(amount("2", "1Gi"), amount("1", "2Gi"))),
			apierr.InvalidRequest,
			[]string{at + "resource_requirements.requests.cpu REQUEST_OVER_LIMIT"},
		},
		{"the same amount in another spelling is not over its limit", &sandboxv1.Policy{}, sandbox(asking(amount("1000m", "1024Mi"), amount("1", "1Gi"))), "", nil},
		{"a sandbox under the ceilings is allowed", ceiling, sandbox(second), "", nil},
		{
			"a sandbox over a ceiling is refused", ceiling, sandbox(second, asking(amount("1001m", "2Gi"), nil)),
			apierr.ResourceCeilingExceeded,
			[]string{"spec.containers CPU_CEILING"},
		},
		{"limits do not count towards a ceiling", ceiling, sandbox(second, asking(amount("1", "1Gi"), amount("64", "64Gi"))), "", nil},
		{
			"init containers count where they need more than the rest", ceiling, sandbox(initial),
			apierr.ResourceCeilingExceeded,
			[]string{"spec.containers CPU_CEILING"},
		},
		{
			"limits that must be declared", limits, sandbox(asking(amount("1", "1Gi"), amount("1", ""))),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.limits.memory REQUIRE_LIMITS"},
		},
		{
			"requests that must be declared", limits, sandbox(asking(nil, amount("1", "1Gi"))),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.requests.cpu REQUIRE_LIMITS", at + "resource_requirements.requests.memory REQUIRE_LIMITS"},
		},
		{"the older field declares both", limits, sandbox(func(s *sandboxv1.SandboxSpec) { s.Containers[0].Resources = amount("1", "1Gi") }), "", nil},
		{"a default of the policy stands for both", rules(func(c *sandboxv1.ResourceConstraints) {
			c.RequireLimits, c.DefaultCpu, c.DefaultMemory = proto.Bool(true), "1", "1Gi"
		}), sandbox(), "", nil},
		{"no cap allows GPUs", &sandboxv1.Policy{}, sandbox(asking(gpus(9007199254740993), nil)), "", nil},
		{
			"a cap of 0 allows none", noGPU, sandbox(asking(gpus(1), nil)),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.requests.gpu.count MAX_GPU_COUNT"},
		},
		{"a cap of 0 allows a sandbox without", noGPU, sandbox(), "", nil},
		{"exactly the cap is allowed", twoGPUs, sandbox(asking(gpus(2), gpus(2))), "", nil},
		{
			"over the cap is refused", twoGPUs, sandbox(asking(gpus(3), nil)),
			apierr.PolicyViolation,
			[]string{at + "resource_requirements.requests.gpu.count MAX_GPU_COUNT"},
		},
		{
			"GPUs are not overcommitted", twoGPUs, sandbox(asking(gpus(1), gpus(2))),
			apierr.InvalidRequest,
			[]string{at + "resource_requirements.limits.gpu GPU_OVERCOMMIT"},
		},
		{
			"GPUs in limits alone are refused", twoGPUs, sandbox(asking(nil, gpus(1))),
			apierr.InvalidRequest,
			[]string{at + "resource_requirements.limits.gpu GPU_OVERCOMMIT"},
		},
		{"resources and resource_requirements exclude each other", &sandboxv1.Policy{}, sandbox(asking(amount("1", ""), nil), func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].Resources = amount("1", "1Gi")
		}), apierr.InvalidRequest, []string{at + "resources MUTUALLY_EXCLUSIVE"}},
		{
			"quantities without a meaning are refused, each", &sandboxv1.Policy{}, sandbox(asking(amount("lots", "-1"), amount("0", "512m"))),
			apierr.InvalidRequest,
			[]string{
				at + "resource_requirements.requests.cpu INVALID_QUANTITY", at + "resource_requirements.limits.cpu INVALID_QUANTITY",
				at + "resource_requirements.requests.memory INVALID_QUANTITY", at + "resource_requirements.limits.memory INVALID_QUANTITY",
			},
		},
		{
			"what is invalid gives the reason, and the policy's rules are named beside it", maximum, sandbox(asking(amount("5", "?"), nil)),
			apierr.InvalidRequest,
			[]string{at + "resource_requirements.requests.cpu MAX_CPU", at + "resource_requirements.requests.memory INVALID_QUANTITY"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			reason, rules := refusalOf(t, err)
			if reason != test.reason {
				t.Errorf("reason %q, want %q: %v", reason, test.reason, err)
			}
			if diff := cmp.Diff(test.rules, rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheRunnersOwnSwitchAsksTheSandboxForLimits(t *testing.T) {
	standard := limiting(&sandboxv1.ResourceConstraints{DefaultCpu: "1", DefaultMemory: "1Gi"})
	_, err := policy.Resolve(policy.Request{Spec: sandbox(asking(amount("1", "1Gi"), amount("1", ""))), Policy: standard, EnforceResourceLimits: true})
	reason, rules := refusalOf(t, err)
	want := []string{"spec.containers[0].resource_requirements.limits.memory ENFORCE_RESOURCE_LIMITS"}
	if reason != apierr.PolicyViolation || !cmp.Equal(rules, want) {
		t.Errorf("%s %v, want %v", reason, rules, want)
	}
	if _, err := policy.Resolve(policy.Request{Spec: sandbox(asking(amount("1", "1Gi"), amount("1", "1Gi"))), Policy: standard, EnforceResourceLimits: true}); err != nil {
		t.Error(err)
	}
}

func TestAViolationNamesFieldValueLimitAndRule(t *testing.T) {
	_, err := policy.Resolve(policy.Request{
		Spec:   sandbox(asking(amount("16", "1Gi"), nil)),
		Policy: limiting(&sandboxv1.ResourceConstraints{MaxCpu: "8"}),
	})
	want := `spec.containers[0].resource_requirements.requests.cpu: "16" is more than the policy's maximum of "8" for a container (policy.constraints.resources.max_cpu); ask for at most that`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestWithoutAPolicyEverySandboxIsRefused(t *testing.T) {
	_, err := policy.Resolve(policy.Request{Spec: sandbox()})
	if apierr.ReasonOf(err) != apierr.PlacementRejected {
		t.Errorf("%v", err)
	}
}

func TestASpecIsRequired(t *testing.T) {
	_, err := policy.Resolve(policy.Request{Policy: &sandboxv1.Policy{}})
	if apierr.ReasonOf(err) != apierr.InvalidRequest {
		t.Errorf("%v", err)
	}
}
