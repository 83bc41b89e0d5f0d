package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
)

func TestRunnerEnrolsDescribesItselfAndSendsHeartbeats(t *testing.T) {
	b := newBench(t)
	client, stop := b.start()
	description, err := client.Describe(b.ctx(), &runnerv1.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if description.GetRunnerId() != "runner-1" || description.GetVersion() != "1.2.3" || description.GetRuntime() != "fake" ||
		description.GetCapacity().GetCpuMillicores() != 40_000 || description.GetCapacity().GetMemoryBytes() != 8<<30 {
		t.Errorf("described as %v", description)
	}
	select {
	case <-b.gateway.heartbeats:
	case <-time.After(patience):
		t.Error("no heartbeat")
	}
	info, err := os.Stat(filepath.Join(b.dir, "credential"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the credential's file: %v, %v", info.Mode(), err)
	}
	stop()
	_, stop = b.start()
	stop()
	if n := b.gateway.enrolled(); n != 1 {
		t.Errorf("enrolled %d times, want once", n)
	}
}

func TestRunnerEnrolsAgainWhenItsCredentialIsRefused(t *testing.T) {
	b := newBench(t)
	_, stop := b.start()
	stop()
	b.gateway.revoke()
	b.start()
	if n := b.gateway.enrolled(); n != 2 {
		t.Errorf("enrolled %d times, want twice", n)
	}
}

func TestSandboxRunsToItsEnd(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := newID(1)
	status := b.create(client, 1, shell("exit 7"))
	if status.GetStartTime() == nil || status.GetRunnerId() != "runner-1" {
		t.Errorf("status %v", status)
	}
	if got := status.GetEffectiveResourceRequirements().GetRequests().GetCpu(); got != "100m" {
		t.Errorf("effective CPU %q", got)
	}
	status = b.await(client, id, ended)
	if status.GetState() != sandboxv1.State_STATE_COMPLETED || status.ExitCode == nil || status.GetExitCode() != 7 || status.GetEndTime() == nil {
		t.Errorf("ended as %v", status)
	}
	if after := b.delete(client, id, 0); after.GetState() != sandboxv1.State_STATE_COMPLETED {
		t.Errorf("a delete made it %s", after.GetState())
	}
	b.nothingLeft()
	if _, err := client.ForgetSandbox(b.ctx(), &runnerv1.ForgetSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	if all := b.synced(client); len(all) != 0 {
		t.Errorf("remembers %v", all)
	}
	if entries, err := os.ReadDir(filepath.Join(b.dir, "state", "sandboxes")); err != nil || len(entries) != 0 {
		t.Errorf("left on disk: %v, %v", entries, err)
	}
}

func TestExitCodeOfSuccessIsPresent(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	b.create(client, 1, shell("true"))
	if status := b.await(client, newID(1), ended); status.ExitCode == nil || status.GetExitCode() != 0 {
		t.Errorf("ended as %v", status)
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	request := b.request(1, shell("sleep 1000"))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			response, err := client.CreateSandbox(b.ctx(), request)
			if err != nil || response.GetSandbox().GetStatus().GetState() != sandboxv1.State_STATE_RUNNING {
				t.Errorf("create: %v, %v", response, err)
			}
		})
	}
	group.Wait()
	if found, err := b.machine.List(b.ctx()); err != nil || len(found) != 1 {
		t.Errorf("the engine has %v, %v", found, err)
	}
}

func TestImageFailuresAreToldInTheState(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	for n, test := range []struct{ image, reason string }{
		{"missing:1", "image pull failed: missing:1: registry https://registry.example: 404 Not Found; do something about it"},
		{"down:1", "image pull failed: down:1: registry https://registry.example: connection refused; do something about it"},
	} {
		spec := shell("true")
		spec.Containers[0].Image = test.image
		status := b.create(client, n, spec)
		if status.GetState() != sandboxv1.State_STATE_FAILED || status.GetStateReason() != test.reason {
			t.Errorf("%s: %v", test.image, status)
		}
	}
}

func TestProgramThatDoesNotExistFailsTheSandbox(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	spec := shell("")
	spec.Containers[0].Command = "/no/such/program"
	status := b.create(client, 1, spec)
	if status.GetState() != sandboxv1.State_STATE_FAILED || !strings.Contains(status.GetStateReason(), "/no/such/program") {
		t.Errorf("status %v", status)
	}
	b.delete(client, newID(1), 0)
	b.nothingLeft()
}

func TestDeleteFromEveryState(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		grace   int32
		holds   bool
		code    *int32
	}{
		"running, obeys SIGTERM":          {command: "trap 'exit 3' TERM; sleep 1000 & wait", grace: 20, code: ptr(3)},
		"running, at once":                {command: "sleep 1000", code: ptr(137)},
		"running, ignores SIGTERM":        {command: "trap '' TERM; while true; do sleep 0.1; done", grace: 1, code: ptr(137)},
		"creating, the pull is cancelled": {command: "sleep 1000", holds: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			client, _ := b.serve()
			created := make(chan struct{})
			if tc.holds {
				b.engine.pulling = make(chan struct{})
			}
			go func() {
				defer close(created)
				b.create(client, 1, shell(tc.command))
			}()
			if tc.holds {
				b.await(client, newID(1), func(*sandboxv1.SandboxStatus) bool { return true })
			} else {
				<-created
			}
			status := b.delete(client, newID(1), tc.grace)
			<-created
			if status.GetState() != sandboxv1.State_STATE_TERMINATED {
				t.Errorf("ended as %v", status)
			}
			if (status.ExitCode == nil) != (tc.code == nil) || status.GetExitCode() != deref(tc.code) {
				t.Errorf("exit code %v, want %v", status.ExitCode, tc.code)
			}
			b.nothingLeft()
		})
	}
}

func ptr(code int32) *int32 { return &code }

func deref(code *int32) int32 {
	if code == nil {
		return 0
	}
	return *code
}

func TestConcurrentDeletesShareTheWorkAndTheSooner(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("trap '' TERM; while true; do sleep 0.1; done"))
	var group sync.WaitGroup
	for _, grace := range []int32{300, 300, 0} {
		group.Go(func() {
			if status := b.delete(client, id, grace); status.GetState() != sandboxv1.State_STATE_TERMINATED {
				t.Errorf("ended as %v", status)
			}
		})
	}
	group.Wait()
	b.nothingLeft()
}

func TestDeleteOfAnUnknownSandboxSucceeds(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	if status := b.delete(client, newID(9), 0); status != nil {
		t.Errorf("answered %v", status)
	}
}

func TestRemovalIsTriedUntilItSucceeds(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	b.engine.mu.Lock()
	b.engine.failRemovals = 2
	b.engine.mu.Unlock()
	if status := b.delete(client, id, 0); status.GetState() != sandboxv1.State_STATE_TERMINATED {
		t.Errorf("ended as %v", status)
	}
	b.nothingLeft()
}

func TestLifetimeEndsASandbox(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	spec := shell("trap 'exit 0' TERM; sleep 1000 & wait")
	spec.MaxLifetimeSeconds = 1
	b.mustRun(client, 1, spec)
	status := b.await(client, newID(1), ended)
	if status.GetState() != sandboxv1.State_STATE_TERMINATED || !strings.Contains(status.GetStateReason(), "lifetime of 1 s") {
		t.Errorf("ended as %v", status)
	}
	b.delete(client, newID(1), 0)
	b.nothingLeft()
}

func TestOOMKillOfTheMainProcessFailsTheSandbox(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	b.engine.mu.Lock()
	b.engine.oomKills = 1
	b.engine.mu.Unlock()
	b.create(client, 1, shell("kill -9 $$"))
	status := b.await(client, newID(1), ended)
	if status.GetState() != sandboxv1.State_STATE_FAILED || !strings.HasPrefix(status.GetStateReason(), "OOM killed") || status.GetExitCode() != 137 {
		t.Errorf("ended as %v", status)
	}
}

func TestGuestDeathFailsTheSandbox(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	b.killGuest(id)
	status := b.await(client, id, ended)
	if status.GetState() != sandboxv1.State_STATE_FAILED || !strings.Contains(status.GetStateReason(), "unexpectedly") {
		t.Errorf("ended as %v", status)
	}
	b.delete(client, id, 0)
	b.nothingLeft()
}

func TestCapacityIsNotPromisedTwice(t *testing.T) {
	b := newBench(t)
	b.limits.CPUMillis = 250
	client, _ := b.serve()
	b.mustRun(client, 1, shell("sleep 1000"))
	b.mustRun(client, 2, shell("sleep 1000"))
	_, err := client.CreateSandbox(b.ctx(), b.request(3, shell("sleep 1000")))
	if apierr.ReasonOf(err) != apierr.RunnerCapacityExhausted || !strings.Contains(err.Error(), "CPU: the sandbox requests 100m of 250m, of which 200m are taken") {
		t.Fatalf("the third: %v", err)
	}
	b.delete(client, newID(1), 0)
	b.mustRun(client, 3, shell("sleep 1000"))
}

func TestFactorsMultiplyWhatTheMachineHas(t *testing.T) {
	for name, tc := range map[string]struct {
		limits      Limits
		cpu, memory int64
	}{
		"CPU is overcommitted unless told otherwise": {cpu: 40_000, memory: 8 << 30},
		"by the factors that are set":                {limits: Limits{OvercommitCPU: 1.5, OvercommitMemory: 0.5}, cpu: 6000, memory: 4 << 30},
		"a figure wins over a factor":                {limits: Limits{CPUMillis: 250, OvercommitCPU: 3}, cpu: 250, memory: 8 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.limits.CPUMillis, b.limits.MemoryBytes = tc.limits.CPUMillis, tc.limits.MemoryBytes
			b.limits.OvercommitCPU, b.limits.OvercommitMemory = tc.limits.OvercommitCPU, tc.limits.OvercommitMemory
			client, _ := b.start()
			description, err := client.Describe(b.ctx(), &runnerv1.DescribeRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := description.GetCapacity(); got.GetCpuMillicores() != tc.cpu || got.GetMemoryBytes() != tc.memory {
				t.Errorf("promises %v; want %d and %d", got, tc.cpu, tc.memory)
			}
		})
	}
}

func TestPolicyHoldsWithoutAGateway(t *testing.T) {
	b := newBench(t)
	client, stop := b.start()
	b.synced(client)
	if _, err := client.CreateSandbox(b.ctx(), b.request(1, shell("true"))); apierr.ReasonOf(err) != apierr.PlacementRejected {
		t.Errorf("without a policy: %v", err)
	}
	policy := &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Resources: &sandboxv1.ResourceConstraints{MaxCpu: "50m"}}}
	if _, err := client.SetPolicy(b.ctx(), &runnerv1.SetPolicyRequest{Policy: policy, Etag: "e7"}); err != nil {
		t.Fatal(err)
	}
	stop()
	client, _ = b.start()
	b.synced(client)
	if _, err := client.CreateSandbox(b.ctx(), b.request(1, shell("true"))); apierr.ReasonOf(err) != apierr.PolicyViolation {
		t.Errorf("after a restart: %v", err)
	}
	description, err := client.Describe(b.ctx(), &runnerv1.DescribeRequest{})
	if err != nil || description.GetPolicyEtag() != "e7" {
		t.Errorf("described as %v, %v", description, err)
	}
}

func TestWhatCannotBeEnforcedIsRefused(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	for name, tc := range map[string]struct {
		edit   func(*sandboxv1.SandboxSpec)
		reason apierr.Reason
	}{
		"volumes": {func(s *sandboxv1.SandboxSpec) {
			s.Volumes = []*sandboxv1.SandboxVolume{{Name: "v", Source: &sandboxv1.SandboxVolume_Scratch{Scratch: &sandboxv1.ScratchVolume{}}}}
		}, apierr.NotImplemented},
		"a public service": {func(s *sandboxv1.SandboxSpec) {
			s.Services = []*sandboxv1.Service{{Port: 80, Visibility: sandboxv1.Visibility_VISIBILITY_PUBLIC}}
		}, apierr.NotImplemented},
		"egress by name": {func(s *sandboxv1.SandboxSpec) {
			s.Network = &sandboxv1.NetworkOptions{Egress: []*sandboxv1.EgressRule{{Destination: &sandboxv1.EgressRule_DnsName{DnsName: "example.com"}}}}
		}, apierr.PlacementUnsatisfied},
		"egress to IPv6": {func(s *sandboxv1.SandboxSpec) {
			s.Network = &sandboxv1.NetworkOptions{Egress: []*sandboxv1.EgressRule{toNetwork("192.0.2.0/24"), toNetwork("2001:db8::/32")}}
		}, apierr.PlacementUnsatisfied},
	} {
		t.Run(name, func(t *testing.T) {
			spec := shell("true")
			tc.edit(spec)
			if _, err := client.CreateSandbox(b.ctx(), b.request(1, spec)); apierr.ReasonOf(err) != tc.reason {
				t.Errorf("got %v (%s)", err, apierr.ReasonOf(err))
			}
		})
	}
}

func toNetwork(cidr string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Destination: &sandboxv1.EgressRule_Cidr{Cidr: &sandboxv1.CidrBlock{Cidr: cidr}}}
}

func TestRefusedEgressNamesTheFieldThatHasIt(t *testing.T) {
	declared := shell("true")
	declared.Network = &sandboxv1.NetworkOptions{Egress: []*sandboxv1.EgressRule{toNetwork("192.0.2.0/24"), toNetwork("2001:db8::/32")}}
	byDefault := &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Network: &sandboxv1.NetworkConstraints{
		DefaultEgress: []*sandboxv1.PolicyEgressRule{{Destination: &sandboxv1.PolicyEgressRule_Cidr{Cidr: &sandboxv1.CidrBlock{Cidr: "2001:db8::/32"}}}},
	}}}
	for name, tc := range map[string]struct {
		spec   *sandboxv1.SandboxSpec
		policy *sandboxv1.Policy
		field  string
	}{
		"the sandbox":        {declared, &sandboxv1.Policy{}, "spec.network.egress[1].cidr"},
		"the policy default": {shell("true"), byDefault, "policy.constraints.network.default_egress[0].cidr"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.spec.Containers[0].Image = "busybox:1"
			resolved, err := policy.Resolve(policy.Request{Spec: tc.spec, Policy: tc.policy})
			if err != nil {
				t.Fatal(err)
			}
			if got := resolved.IPv6(); got != tc.field {
				t.Errorf("IPv6() = %q; want %q", got, tc.field)
			}
			_, err = engineEgress(&resolved)
			var refusal *apierr.Error
			if !errors.As(err, &refusal) || len(refusal.Violations()) != 1 || refusal.Violations()[0].Field != tc.field {
				t.Errorf("got %v; want a violation of %s alone", err, tc.field)
			}
		})
	}
}

func TestImagesAreListedAndPruned(t *testing.T) {
	b := newBench(t)
	client, _ := b.serve()
	listed, err := client.ListImages(b.ctx(), nil)
	if err != nil || len(listed.GetImages()) != 1 || listed.GetImages()[0].GetDigest() != fakeDigest {
		t.Errorf("listed %v, %v", listed, err)
	}
	pruned, err := client.PruneImages(b.ctx(), nil)
	if err != nil || len(pruned.GetRemovedImages()) != 1 {
		t.Errorf("pruned %v, %v", pruned, err)
	}
}

func TestStandbyDescribesItselfAndTakesOver(t *testing.T) {
	b := newBench(t)
	old, stopOld := b.serve()
	id := b.mustRun(old, 1, shell("sleep 1000"))
	standby, _ := b.start()
	if _, err := standby.Describe(b.ctx(), &runnerv1.DescribeRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := standby.CreateSandbox(b.ctx(), b.request(2, shell("true")))
	if connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a create in standby: %v", err)
	}
	stopOld()
	if status := b.synced(standby)[id].GetStatus(); status.GetState() != sandboxv1.State_STATE_RUNNING {
		t.Errorf("taken over as %v", status)
	}
	if status := b.delete(standby, id, 0); status.GetState() != sandboxv1.State_STATE_TERMINATED {
		t.Errorf("ended as %v", status)
	}
	b.nothingLeft()
}
