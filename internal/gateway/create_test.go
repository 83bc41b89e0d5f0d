package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

func TestAQuickCreationIsAnsweredRunning(t *testing.T) {
	_, _, c := ready(t)
	sb := create(t, c, func(s *sandboxv1.SandboxSpec) { s.Tags = []string{"a"} })
	status := sb.GetStatus()
	if status.GetState() != sandboxv1.State_STATE_RUNNING {
		t.Errorf("state = %v", status.GetState())
	}
	if status.GetRunnerId() != "runner-1" || status.GetRunnerGroupId() != "group-1" || status.GetStartTime() == nil { // trap 19
		t.Errorf("runner %q of %q, started %v", status.GetRunnerId(), status.GetRunnerGroupId(), status.GetStartTime())
	}
	want := spec(func(s *sandboxv1.SandboxSpec) { s.Tags = []string{"a"} })
	for name, got := range map[string]*sandboxv1.Sandbox{"create": sb, "get": get(t, c, sb.GetSandboxId())} { // trap 18
		if diff := cmp.Diff(want, got.GetSpec(), protocmp.Transform()); diff != "" {
			t.Errorf("%s does not echo the spec (-want +got):\n%s", name, diff)
		}
	}
}

func TestASlowCreationIsAnsweredWithWhatIsKnown(t *testing.T) {
	_, h, c := ready(t)
	h.gate = make(chan struct{})
	sb := create(t, c)
	status := sb.GetStatus()
	if status.GetState() != sandboxv1.State_STATE_CREATING {
		t.Errorf("state = %v", status.GetState())
	}
	// Traps 44 and 45: in the words of the request, and at once.
	if diff := cmp.Diff(spec().Containers[0].GetResourceRequirements(), status.GetEffectiveResourceRequirements(), protocmp.Transform()); diff != "" {
		t.Errorf("effective requirements differ (-want +got):\n%s", diff)
	}
	if status.GetEffectiveMaxLifetimeSeconds() <= 0 {
		t.Errorf("effective lifetime = %d", status.GetEffectiveMaxLifetimeSeconds())
	}
	if status.GetEffectiveRuntimeClass() != "fake" {
		t.Errorf("effective runtime class = %q; want the runner's own", status.GetEffectiveRuntimeClass())
	}
	close(h.gate)
	awaitState(t, c, sb.GetSandboxId(), sandboxv1.State_STATE_RUNNING)
}

func TestAllThatIsWrongIsSaidAtOnce(t *testing.T) {
	_, _, c := ready(t)
	_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
		RequestId: strings.Repeat("x", 129),
		Sandbox: &sandboxv1.Sandbox{Spec: &sandboxv1.SandboxSpec{
			PrimaryContainer: "other",
			RunnerIds:        []string{" ", "a", "a"},
			Tags:             []string{"", strings.Repeat("t", 60)},
			Services:         []*sandboxv1.Service{{Port: 0}, {Port: 80}, {Port: 80, Protocol: sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_TCP}},
			Containers: []*sandboxv1.Container{{
				Args:                 []string{"a\x00b"},
				EnvironmentVariables: map[string]string{"A=B": "x"},
				WorkingDir:           "relative",
				Files:                []*sandboxv1.FileMount{{Path: "/a"}, {Path: "/b/../a"}, {Path: "/"}},
			}},
		}},
	})
	wantReason(t, err, apierr.InvalidRequest)
	var fields []string
	for _, v := range apierr.BadRequest(err).GetFieldViolations() {
		fields = append(fields, v.GetField())
	}
	want := []string{
		"request_id", "spec.containers[0].name", "spec.containers[0].image", "spec.containers[0].args[0]",
		`spec.containers[0].environment_variables["A=B"]`, "spec.containers[0].working_dir",
		"spec.containers[0].files[1].path", "spec.containers[0].files[2].path", "spec.primary_container", "spec.runner_ids",
		"spec.runner_ids[0]", "spec.runner_ids[2]", "spec.tags[0]", "spec.tags[1]", "spec.services[0].port", "spec.services[2].port",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields differ (-want +got):\n%s", diff)
	}
}

func TestPolicyViolationsAreToldWithThoseOfTheShape(t *testing.T) {
	e, _, c := ready(t)
	e.runners.declare(gateway.Runner{RunnerKey: runnerOne.RunnerKey, Shared: true, Policy: gateway.PolicySnapshot{
		Policy: &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{
			Resources: &sandboxv1.ResourceConstraints{MaxCpu: "250m"},
			Image:     &sandboxv1.ImageConstraints{AllowedRegistries: []string{"ghcr.io/acme"}},
		}},
	}})
	for name, tc := range map[string]struct {
		edit func(*sandboxv1.SandboxSpec)
		want []string
	}{
		"of other fields": {func(s *sandboxv1.SandboxSpec) { s.Tags = []string{""} }, []string{
			"spec.tags[0]", "spec.containers[0].image",
			"spec.containers[0].resource_requirements.requests.cpu", "spec.containers[0].resource_requirements.limits.cpu",
		}},
		"of the same field, once": {func(s *sandboxv1.SandboxSpec) { s.Containers[0].Image = "" }, []string{
			"spec.containers[0].image",
			"spec.containers[0].resource_requirements.requests.cpu", "spec.containers[0].resource_requirements.limits.cpu",
		}},
		"of no runner, where none takes the mode": {func(s *sandboxv1.SandboxSpec) {
			s.Tags, s.Mode, s.RunnerIds = []string{""}, sandboxv1.SandboxMode_SANDBOX_MODE_CKS, []string{"nobody"}
		}, []string{"spec.tags[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec(tc.edit)}})
			wantReason(t, err, apierr.InvalidRequest)
			var fields []string
			for _, v := range apierr.BadRequest(err).GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
			if diff := cmp.Diff(tc.want, fields); diff != "" {
				t.Errorf("fields differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsNotSupportedIsRefusedByName(t *testing.T) {
	_, h, c := ready(t)
	for field, edit := range map[string]func(*sandboxv1.SandboxSpec){
		"spec.containers[1]": func(s *sandboxv1.SandboxSpec) {
			s.Containers = append(s.Containers, &sandboxv1.Container{Name: "b", Image: "b"})
		},
		"spec.volumes": func(s *sandboxv1.SandboxSpec) { s.Volumes = []*sandboxv1.SandboxVolume{{Name: "v"}} },
		"spec.init_containers": func(s *sandboxv1.SandboxSpec) {
			s.InitContainers = []*sandboxv1.Container{{Name: "i", Image: "i"}}
		},
		"spec.services[0].visibility": func(s *sandboxv1.SandboxSpec) {
			s.Services = []*sandboxv1.Service{{Port: 80, Visibility: sandboxv1.Visibility_VISIBILITY_PUBLIC}}
		},
		"spec.containers[0].secret_stores": func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].SecretStores = []*sandboxv1.SecretStoreReference{{StoreName: "x"}}
		},
		"spec.object_storage_access": func(s *sandboxv1.SandboxSpec) { s.ObjectStorageAccess = &sandboxv1.ObjectStorageAccess{} },
		"spec.network.ingress": func(s *sandboxv1.SandboxSpec) {
			s.Network = &sandboxv1.NetworkOptions{Ingress: []*sandboxv1.IngressRule{{}}}
		},
	} {
		_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec(edit)}})
		wantReason(t, err, apierr.NotImplemented)
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if len(h.created) > 0 {
		t.Errorf("the runner was asked for %v", h.created)
	}
}

func TestAListeningServiceIsEchoedWithoutAnAddress(t *testing.T) {
	_, _, c := ready(t)
	sb := create(t, c, func(s *sandboxv1.SandboxSpec) { s.Services = []*sandboxv1.Service{{Port: 8080, Name: "web"}} })
	got := sb.GetStatus().GetServices()
	if len(got) != 1 || got[0].GetPort() != 8080 || got[0].GetUrl() != "" {
		t.Errorf("services = %v", got)
	}
}

func TestARepeatedRequestGetsItsFirstAnswer(t *testing.T) { // trap 39
	e, _, c := ready(t)
	req := &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}, RequestId: "r-1"}
	first, err := c.CreateSandbox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	// Even when nothing could be placed any more.
	e.runners.declare(gateway.Runner{RunnerKey: runnerOne.RunnerKey, Deleting: true})
	again, err := c.CreateSandbox(t.Context(), req)
	if err != nil || again.GetSandboxId() != first.GetSandboxId() {
		t.Errorf("again: %v, %v", again.GetSandboxId(), err)
	}
	req.Sandbox.Spec.Tags = []string{"other"}
	_, err = c.CreateSandbox(t.Context(), req)
	wantReason(t, err, apierr.InvalidRequest)
	if err != nil && !strings.Contains(err.Error(), first.GetSandboxId()) {
		t.Errorf("%v does not name the sandbox", err)
	}
	_, err = e.clients(t, "org-2").CreateSandbox(t.Context(), req)
	wantReason(t, err, apierr.NoSuitableRunner)
}

func TestTheSameRequestAtTheSameTimeMakesOneSandbox(t *testing.T) { // trap 39
	e, _, c := ready(t)
	ids := make([]string, 16)
	var group errgroup.Group
	for i := range ids {
		group.Go(func() error {
			sb, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
				Sandbox: &sandboxv1.Sandbox{Spec: spec()}, RequestId: "same",
			})
			ids[i] = sb.GetSandboxId()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("made %v", ids)
	}
	r, err := c.discovery.GetAvailableRunner(t.Context(), &sandboxv1.GetAvailableRunnerRequest{RunnerId: "runner-1", OrganizationId: org})
	if err != nil || r.GetResources().GetAvailableCpuMillicores() != 7500 {
		t.Errorf("room after one sandbox of 500m on 8000m = %v, %v", r.GetResources(), err)
	}
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if len(e.store.records) != 1 {
		t.Errorf("%d rows", len(e.store.records))
	}
}

func TestParallelCreationsNeverOversell(t *testing.T) {
	_, _, c := ready(t)
	var mu sync.Mutex
	var made []string
	var group errgroup.Group
	for range 40 { // of which 16 × 500m fit on 8000m
		group.Go(func() error {
			sb, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}})
			if apierr.ReasonOf(err) == apierr.RunnerCapacityExhausted {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, sb.GetSandboxId())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(made) != 16 {
		t.Fatalf("%d sandboxes were placed, 16 fit", len(made))
	}
	stop(t, c, made[0])
	create(t, c)
	_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}})
	wantReason(t, err, apierr.RunnerCapacityExhausted)
}

func TestPoliciesRefuseWithEveryViolation(t *testing.T) {
	e, _, c := ready(t)
	e.runners.declare(gateway.Runner{RunnerKey: runnerOne.RunnerKey, Shared: true, Policy: gateway.PolicySnapshot{
		Policy: &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{
			Resources: &sandboxv1.ResourceConstraints{MaxCpu: "250m", MaxMemory: "256Mi"},
		}},
	}})
	_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}})
	wantReason(t, err, apierr.PolicyViolation)
	if n := len(apierr.BadRequest(err).GetFieldViolations()); n < 2 {
		t.Errorf("%d violations: %v", n, err)
	}
}

func TestAChangedPolicyHoldsForTheNextSandbox(t *testing.T) {
	e, _, c := ready(t)
	declare := func(etag, maxCPU string) {
		e.runners.declare(gateway.Runner{RunnerKey: runnerOne.RunnerKey, Shared: true, Policy: gateway.PolicySnapshot{
			ETag: etag,
			Policy: &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{
				Resources: &sandboxv1.ResourceConstraints{MaxCpu: maxCPU},
			}},
		}})
	}
	declare("wide", "4")
	create(t, c)
	create(t, c)
	declare("narrow", "250m")
	_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}})
	wantReason(t, err, apierr.PolicyViolation)
	declare("wide again", "4")
	create(t, c)
}

func TestARunnerThatRefusesMakesAReasonedFailure(t *testing.T) {
	_, h, c := ready(t)
	h.refuse = connect.NewError(connect.CodeInvalidArgument, errors.New("the policy has changed"))
	sb := create(t, c)
	if sb.GetStatus().GetState() != sandboxv1.State_STATE_FAILED || !strings.Contains(sb.GetStatus().GetStateReason(), "the policy has changed") {
		t.Errorf("status = %v", sb.GetStatus())
	}
}

func TestCreationGoesOnAcrossDisconnections(t *testing.T) {
	e := newEnvironment(t)
	h := newHost()
	h.gate = make(chan struct{})
	_, kill := e.start(t, h, runnerOne)
	c := e.clients(t, org)
	e.awaitHealthy(t, c, "runner-1")
	sb := create(t, c)
	kill()
	e.start(t, h, runnerOne)
	eventually(t, "the runner was asked again", h.sees(func(h *host) bool { return len(h.created) > 1 }))
	close(h.gate)
	awaitState(t, c, sb.GetSandboxId(), sandboxv1.State_STATE_RUNNING)
}

func TestASandboxThatWaitsForItsRunnerSaysSoAndHoldsNoCall(t *testing.T) {
	h := newHost()
	h.gate = make(chan struct{})
	e, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	if reason := get(t, c, id).GetStatus().GetStateReason(); reason != "" {
		t.Errorf("while its runner is there the reason is %q", reason)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answers := make(chan error, 8)
	for range cap(answers) {
		go func() {
			_, err := c.Exec(ctx, &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"true"}})
			answers <- err
		}()
	}
	kill()
	for range cap(answers) {
		wantReason(t, <-answers, apierr.RunnerUnavailable)
	}
	awaitUnhealthy(t, c)
	sb := get(t, c, id)
	if reason := sb.GetStatus().GetStateReason(); sb.GetStatus().GetState() != sandboxv1.State_STATE_CREATING || !strings.Contains(reason, "runner-1") {
		t.Errorf("without its runner: %v, %q", sb.GetStatus().GetState(), reason)
	}
	close(h.gate)
	e.start(t, h, runnerOne)
	if sb := awaitState(t, c, id, sandboxv1.State_STATE_RUNNING); sb.GetStatus().GetStateReason() != "" {
		t.Errorf("running, the reason is %q", sb.GetStatus().GetStateReason())
	}
}

func TestCreationGoesOnAfterARestartOfTheGateway(t *testing.T) {
	e, h, c := ready(t)
	h.gate = make(chan struct{})
	sb := create(t, c)
	e.restart(t)
	eventually(t, "the runner was asked again", h.sees(func(h *host) bool { return len(h.created) > 1 }))
	close(h.gate)
	awaitState(t, c, sb.GetSandboxId(), sandboxv1.State_STATE_RUNNING)
}

func TestASandboxIsListedAtOnceAndByAllItsTags(t *testing.T) { // trap 37
	_, _, c := ready(t)
	tags := func(tags ...string) func(*sandboxv1.SandboxSpec) {
		return func(s *sandboxv1.SandboxSpec) { s.Tags = tags }
	}
	both := create(t, c, tags("a", "b"))
	create(t, c, tags("a"))
	list, err := c.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{Tags: []string{"a", "b"}})
	if err != nil || len(list.GetSandboxes()) != 1 || list.GetSandboxes()[0].GetSandboxId() != both.GetSandboxId() {
		t.Errorf("list = %v, %v", list, err)
	}
}

func TestPagesStayRightWhileSandboxesComeAndGo(t *testing.T) { // trap 36
	_, _, c := ready(t)
	var want []string
	for range 5 {
		want = append([]string{create(t, c).GetSandboxId()}, want...)
	}
	var got []string
	req := &sandboxv1.ListSandboxesRequest{PageSize: 1}
	for {
		page, err := c.ListSandboxes(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.GetSandboxes() {
			got = append(got, sb.GetSandboxId())
			if len(got) == 2 {
				create(t, c)
				stop(t, c, want[0])
			}
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages differ (-want +got):\n%s", diff)
	}
}

func TestListsRefusePageTokensThatTheyDidNotGiveOut(t *testing.T) {
	_, _, c := ready(t)
	for range 2 {
		create(t, c, func(s *sandboxv1.SandboxSpec) { s.Tags = []string{"a"} })
	}
	first, err := c.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{PageSize: 1, Tags: []string{"a"}})
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatalf("first page: %v, %v", first, err)
	}
	for name, token := range map[string]string{"garbage": "garbage", "no base64": "?", "of other filters": first.GetNextPageToken()} {
		_, err := c.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{PageToken: token, PageSize: -1})
		wantFields(t, err, "page_size", "page_token")
		_, err = c.discovery.ListAvailableRunners(t.Context(), &sandboxv1.ListAvailableRunnersRequest{PageToken: token, PageSize: -1})
		wantFields(t, err, "page_size", "page_token")
		if t.Failed() {
			t.Fatalf("token: %s", name)
		}
	}
}

func TestACallerWhoLeavesDoesNotStopACreation(t *testing.T) {
	e, h, c := ready(t)
	h.gate = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec()}}); err == nil {
		t.Fatal("the creation was not slow")
	}
	close(h.gate)
	awaitState(t, e.clients(t, org), fmt.Sprintf("sb-%06d", e.ids.Load()), sandboxv1.State_STATE_RUNNING)
}
