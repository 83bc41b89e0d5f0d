package provider_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

const fakeToken = "fake-token"

// fake is a strict server: it refuses what the contract forbids, and records
// what it was asked.
type fake struct {
	sandboxv1connect.UnimplementedRunnerManagementServiceHandler
	t *testing.T

	mu      sync.Mutex
	runners map[string]*sandboxv1.ManagedRunner
	etags   int
	// deleting counts the looks that a deleted runner still survives.
	deleting map[string]int

	creates, deletes, polls int
	updates                 []*sandboxv1.UpdateManagedRunnerRequest
	requestIDs              []string

	// failures are answered with 503 before the next call is served.
	failures int
	// refuse is what is wrong with every create.
	refuse []apierr.Violation
	// before runs before an update is served.
	before func(*fake)
	// shown alters every answer.
	shown func(*sandboxv1.ManagedRunner)
	// quick finishes a rollout before the write that began it is answered.
	quick bool
	// foreign makes answers look like another server's: fields that are zero are
	// left out and unknown ones are added.
	foreign bool
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, runners: map[string]*sandboxv1.ManagedRunner{}, deleting: map[string]int{}}
}

// serve starts the fake and answers its base URL.
func (f *fake) serve() string {
	path, handler := sandboxv1connect.NewRunnerManagementServiceHandler(f)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.URL.Path, path):
			f.t.Errorf("unexpected path %s", r.URL.Path)
		case r.Header.Get("Content-Type") != "application/json":
			f.t.Errorf("content type %q, want JSON", r.Header.Get("Content-Type"))
		case !strings.HasPrefix(r.Header.Get("User-Agent"), "Terraform/1."):
			f.t.Errorf("user agent %q", r.Header.Get("User-Agent"))
		}
		if f.takeFailure() {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		if f.foreign {
			answerForeign(w, r, handler)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	f.t.Cleanup(server.Close)
	return server.URL
}

func (f *fake) takeFailure() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures == 0 {
		return false
	}
	f.failures--
	return true
}

// answerForeign strips what proto3 JSON may leave out and adds unknown fields.
func answerForeign(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	r.Header.Del("Accept-Encoding")
	recorded := httptest.NewRecorder()
	handler.ServeHTTP(recorded, r)
	body := recorded.Body.Bytes()
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if recorded.Code == http.StatusOK && decoder.Decode(&document) == nil {
		withoutZeros(document)
		for _, name := range []string{"spec", "policy", "identity"} {
			if message, ok := document[name].(map[string]any); ok {
				message["fieldOfALaterVersion"] = map[string]any{"mode": "MODE_NEW"}
			}
		}
		document["fieldOfALaterVersion"] = []any{1, "two"}
		body, _ = json.Marshal(document)
	}
	for name, values := range recorded.Header() {
		if name != "Content-Length" && name != "Content-Encoding" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(recorded.Code)
	_, _ = w.Write(body)
}

// withoutZeros leaves free-form JSON alone, which has no zero values.
func withoutZeros(object map[string]any) map[string]any {
	for key, value := range object {
		switch v := value.(type) {
		case map[string]any:
			if key != "base" && key != "affinity" {
				withoutZeros(v)
			}
		case bool:
			if !v {
				delete(object, key)
			}
		case json.Number:
			if v == "0" {
				delete(object, key)
			}
		}
	}
	return object
}

func (f *fake) locked(ctx context.Context) (func(), error) {
	f.mu.Lock()
	if got := bearer(ctx); got != fakeToken {
		f.mu.Unlock()
		return nil, apierr.Connect(apierr.New(apierr.Unauthenticated, "the token is not valid; create one with sandbar token create"))
	}
	return f.mu.Unlock, nil
}

func (f *fake) answer(runner *sandboxv1.ManagedRunner) *sandboxv1.ManagedRunner {
	out := proto.CloneOf(runner)
	if f.shown != nil {
		f.shown(out)
	}
	return out
}

func (f *fake) CreateManagedRunner(ctx context.Context, req *sandboxv1.CreateManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	unlock, err := f.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f.requestIDs = append(f.requestIDs, req.GetRequestId())
	runner := proto.CloneOf(req.GetManagedRunner())
	id := runner.GetIdentity().GetRunnerId()
	switch {
	case f.refuse != nil:
		return nil, apierr.Connect(apierr.Invalid(apierr.InvalidRequest, f.refuse))
	case req.GetRequestId() == "":
		return nil, invalid("request_id", "must be given")
	case runner.GetPolicy() == nil:
		return nil, invalid("managed_runner.policy", "must be given")
	case len(runner.GetProfileBindings()) > 0, runner.GetEtag() != "", runner.GetInstallStatus() != 0:
		return nil, invalid("managed_runner", "has fields that a create must not have")
	case f.runners[id] != nil:
		return nil, apierr.Connect(apierr.New(apierr.RunnerExists, "runner %s exists", id))
	}
	for _, other := range f.runners {
		if other.GetIdentity().GetClusterId() == runner.GetIdentity().GetClusterId() {
			return nil, apierr.Connect(apierr.New(apierr.ClusterTaken, "the cluster has runner %s", other.GetIdentity().GetRunnerId()))
		}
	}
	f.creates++
	runner.Identity.Zone = strings.ToLower(runner.Identity.Zone)
	runner.Identity.ClusterName = "cluster-of-" + id
	f.settle(runner)
	f.etags++
	runner.Etag = fmt.Sprintf("etag-%d", f.etags)
	runner.InstallStatus = sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_PENDING
	runner.TargetRevision = 1
	runner.CreateTime = timestamppb.New(timestamp("2027-01-01T00:00:00.000000001Z"))
	if f.quick {
		f.observe(runner)
	}
	f.runners[id] = runner
	return f.answer(runner), nil
}

// settle fills in the defaults and what the server derives.
func (f *fake) settle(runner *sandboxv1.ManagedRunner) {
	if runner.GetIdentity().GetRunnerGroupId() == "" {
		runner.Identity.RunnerGroupId = "default"
	}
	if runner.Spec == nil {
		runner.Spec = &sandboxv1.ManagedRunnerSpec{}
	}
	if runner.Spec.ReleaseChannel == 0 {
		runner.Spec.ReleaseChannel = sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE
	}
	mappings := runner.GetPolicy().GetConstraints().GetSecurity().GetRuntimeClassMappings()
	slices.SortFunc(mappings, func(a, b *sandboxv1.RuntimeClassMapping) int { return int(a.GetRuntimeClass() - b.GetRuntimeClass()) })
	runner.DeploymentSpec = &sandboxv1.DeploymentSpec{
		Image: "registry.example/runner:1", Env: runner.GetSpec().GetOverrides().GetEnv(), Resources: runner.GetSpec().GetOverrides().GetResources(),
	}
}

func (f *fake) GetManagedRunner(ctx context.Context, req *sandboxv1.GetManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	unlock, err := f.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	id := req.GetRunnerId()
	if left, ok := f.deleting[id]; ok {
		f.polls++
		f.deleting[id]--
		if left == 0 {
			delete(f.runners, id)
			delete(f.deleting, id)
		}
	}
	runner := f.runners[id]
	if runner == nil {
		return nil, missing(id)
	}
	f.observe(runner)
	return f.answer(runner), nil
}

// observe lets the rollout go one step further with each look.
func (f *fake) observe(runner *sandboxv1.ManagedRunner) {
	runner.InstallStatus = sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_READY
	runner.ConnectionStatus = sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_CONNECTED
	runner.ActiveRevision = runner.GetTargetRevision()
	beat := timestamp("2027-01-01T00:00:00Z")
	if runner.GetLastHeartbeatTime() != nil {
		beat = runner.GetLastHeartbeatTime().AsTime()
	}
	runner.LastHeartbeatTime = timestamppb.New(beat.Add(10e9))
}

func (f *fake) UpdateManagedRunner(ctx context.Context, req *sandboxv1.UpdateManagedRunnerRequest) (*sandboxv1.ManagedRunner, error) {
	unlock, err := f.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if f.before != nil {
		f.before(f)
	}
	runner := f.runners[req.GetRunnerId()]
	if runner == nil {
		return nil, missing(req.GetRunnerId())
	}
	mask := req.GetUpdateMask().GetPaths()
	if len(mask) == 0 || slices.Contains(mask, "*") {
		return nil, invalid("update_mask", "must name fields")
	}
	if etag := req.GetManagedRunner().GetEtag(); slices.Contains(mask, "policy") || etag != "" {
		if etag != runner.GetEtag() {
			return nil, apierr.Connect(apierr.New(apierr.ETagMismatch, "the etag is stale; read the runner again"))
		}
	}
	changed := proto.CloneOf(runner)
	for _, path := range mask {
		if err := copyField(changed.ProtoReflect(), req.GetManagedRunner().ProtoReflect(), path); err != nil {
			return nil, err
		}
	}
	f.settle(changed)
	if slices.Contains(mask, "policy") {
		f.etags++
		changed.Etag = fmt.Sprintf("etag-%d", f.etags)
	}
	if slices.ContainsFunc(mask, func(path string) bool { return strings.HasPrefix(path, "spec.") }) {
		changed.TargetRevision++
	}
	f.runners[req.GetRunnerId()] = changed
	f.updates = append(f.updates, proto.CloneOf(req))
	return f.answer(changed), nil
}

// copyField sets one masked field to that of the source, or clears it.
func copyField(to, from protoreflect.Message, path string) error {
	switch path {
	case "display_name", "policy", "identity.runner_group_id":
	default:
		if parts := strings.Split(path, "."); len(parts) != 2 || parts[0] != "spec" {
			return invalid("update_mask", path+" is not an allowed path")
		}
	}
	for parent, rest, nested := strings.Cut(path, "."); nested; parent, rest, nested = strings.Cut(path, ".") {
		field := to.Descriptor().Fields().ByName(protoreflect.Name(parent))
		to, from, path = to.Mutable(field).Message(), from.Get(field).Message(), rest
	}
	field := to.Descriptor().Fields().ByName(protoreflect.Name(path))
	if field == nil {
		return invalid("update_mask", path+" is not a field")
	}
	if from.Has(field) {
		to.Set(field, from.Get(field))
	} else {
		to.Clear(field)
	}
	return nil
}

func (f *fake) DeleteManagedRunner(ctx context.Context, req *sandboxv1.DeleteManagedRunnerRequest) (*emptypb.Empty, error) {
	unlock, err := f.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if f.runners[req.GetRunnerId()] == nil {
		if req.GetAllowMissing() {
			return &emptypb.Empty{}, nil
		}
		return nil, missing(req.GetRunnerId())
	}
	f.deletes++
	if _, ok := f.deleting[req.GetRunnerId()]; !ok {
		f.deleting[req.GetRunnerId()] = 1
	}
	return &emptypb.Empty{}, nil
}

// change alters a runner behind Terraform's back.
func (f *fake) change(id string, alter func(*sandboxv1.ManagedRunner)) func() {
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		alter(f.runners[id])
	}
}

// forget removes a runner behind Terraform's back.
func (f *fake) forget(id string) func() {
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.runners, id)
	}
}

// masks are the update masks so far.
func (f *fake) masks() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var masks []string
	for _, update := range f.updates {
		masks = append(masks, strings.Join(update.GetUpdateMask().GetPaths(), " "))
	}
	return masks
}

// expect compares the writes so far; nil is safe for a server that is not fake.
func (f *fake) expect(creates, deletes int, masks ...string) {
	if f == nil {
		return
	}
	f.t.Helper()
	if f.creates != creates || f.deletes != deletes {
		f.t.Errorf("%d creates and %d deletes, want %d and %d", f.creates, f.deletes, creates, deletes)
	}
	if diff := cmp.Diff(masks, f.masks()); diff != "" {
		f.t.Errorf("update masks (-want +got):\n%s", diff)
	}
	seen := map[string]bool{}
	for _, id := range f.requestIDs {
		if seen[id] && f.creates == len(f.requestIDs) {
			f.t.Errorf("request id %s used twice", id)
		}
		seen[id] = true
	}
}

func missing(id string) error {
	return apierr.Connect(apierr.New(apierr.RunnerNotFound, "there is no runner %s", id))
}

func invalid(field, description string) error {
	return apierr.Connect(apierr.Invalid(apierr.InvalidRequest, []apierr.Violation{{Field: field, Description: description}}))
}
