package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/install"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a control plane with one cluster, in a bubble of its own time.
type world struct {
	t       *testing.T
	cfg     fleet.Config
	store   *sqlite.Store
	fleet   *fleet.Fleet
	cluster *clusterFake
	gateway *gatewayFake
	key     gateway.RunnerKey
	place   fleet.Cluster
	admin   context.Context
	stop    func()
}

// inWorld runs the test in a bubble; nothing is left of it afterwards.
func inWorld(t *testing.T, test func(*world)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandbar.db")
	synctest.Test(t, func(t *testing.T) {
		store, err := sqlite.Open(t.Context(), path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}()
		rules, err := protovalidate.New()
		if err != nil {
			t.Fatal(err)
		}
		w := &world{
			t: t, store: store, gateway: &gatewayFake{},
			cluster: &clusterFake{tokens: map[int32]string{}, failing: map[int32]*sandboxv1.InstallError{}},
		}
		ids := 0
		var mu sync.Mutex
		w.cfg = fleet.Config{
			Store:         store,
			Installers:    map[adminv1.ClusterKind]install.Installer{adminv1.ClusterKind_CLUSTER_KIND_LOCAL: w.cluster},
			Release:       fleet.Release{Version: "1.0.0"},
			GatewayServer: "http://127.0.0.1:1",
			DefaultPolicy: &sandboxv1.Policy{DisplayName: "default"},
			EnrollmentKey: []byte("0123456789abcdef0123456789abcdef"),
			Rules:         rules,
			Now:           time.Now,
			NewID: func() string {
				mu.Lock()
				defer mu.Unlock()
				ids++
				return fmt.Sprintf("00000000-0000-0000-0000-%012d", ids)
			},
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
		org, err := store.EnsureOrganization(t.Context(), auth.Organization{OrganizationID: "org", Name: "acme", CreateTime: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		w.key = gateway.RunnerKey{OrganizationID: org.OrganizationID, RunnerID: "runner-1"}
		w.admin = auth.WithPrincipal(t.Context(), auth.Principal{OrganizationID: org.OrganizationID, UserID: "admin", Role: auth.RoleAdmin})
		w.start()
		defer func() { w.stop() }()
		w.place, err = w.fleet.Clusters.Ensure(t.Context(), fleet.Cluster{
			OrganizationID: org.OrganizationID, Name: "local", Zone: "zone-a", Kind: adminv1.ClusterKind_CLUSTER_KIND_LOCAL,
		})
		if err != nil {
			t.Fatal(err)
		}
		test(w)
	})
}

// start begins a control plane that knows only what the store knows.
func (w *world) start() {
	w.fleet = fleet.New(w.cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.fleet.Run(ctx, w.gateway) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) restart() {
	w.stop()
	w.start()
	w.settle(0)
}

// settle lets that time pass, and the reconciler do what it can by then.
func (w *world) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) create(policy *sandboxv1.Policy) *sandboxv1.ManagedRunner {
	w.t.Helper()
	created, err := w.fleet.Management.CreateManagedRunner(w.admin, &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{RunnerId: w.key.RunnerID, Zone: "zone-a", ClusterId: w.place.ClusterID},
		Policy:   policy,
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.settle(0)
	return created
}

func (w *world) get() *sandboxv1.ManagedRunner {
	w.t.Helper()
	runner, err := w.fleet.Management.GetManagedRunner(w.admin, &sandboxv1.GetManagedRunnerRequest{RunnerId: w.key.RunnerID})
	if err != nil {
		w.t.Fatal(err)
	}
	return runner
}

// edit changes the deployment, which makes another revision.
func (w *world) edit(value string) {
	w.t.Helper()
	_, err := w.fleet.Management.UpdateManagedRunner(w.admin, &sandboxv1.UpdateManagedRunnerRequest{
		RunnerId: w.key.RunnerID,
		ManagedRunner: &sandboxv1.ManagedRunner{Spec: &sandboxv1.ManagedRunnerSpec{
			Overrides: &sandboxv1.RunnerOverrides{Env: map[string]string{"NAME": value}},
		}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec.overrides"}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.settle(0)
}

func (w *world) remove() {
	w.t.Helper()
	if _, err := w.fleet.Management.DeleteManagedRunner(w.admin, &sandboxv1.DeleteManagedRunnerRequest{RunnerId: w.key.RunnerID}); err != nil {
		w.t.Fatal(err)
	}
	w.settle(0)
}

func (w *world) gone() bool {
	_, err := w.fleet.Management.GetManagedRunner(w.admin, &sandboxv1.GetManagedRunnerRequest{RunnerId: w.key.RunnerID})
	return apierr.ReasonOf(err) == apierr.RunnerNotFound
}

// connect does what the process of that revision does when it starts.
func (w *world) connect(revision int32) gateway.RunnerIdentity {
	w.t.Helper()
	return w.connectAs(revision, &runnerv1.DescribeResponse{})
}

// connectAs is connect of a runner that describes itself so.
func (w *world) connectAs(revision int32, description *runnerv1.DescribeResponse) gateway.RunnerIdentity {
	w.t.Helper()
	w.cluster.mu.Lock()
	token := w.cluster.tokens[revision]
	w.cluster.mu.Unlock()
	identity, credential, err := w.fleet.Registry.Enroll(w.t.Context(), token, "1.0.0")
	if err != nil {
		w.t.Fatalf("enrol revision %d: %v", revision, err)
	}
	if again, err := w.fleet.Registry.Authenticate(w.t.Context(), credential); err != nil || again != identity {
		w.t.Fatalf("authenticate = %v, %v; want %v", again, err, identity)
	}
	if _, err := w.fleet.Registry.Connected(w.t.Context(), identity, description); err != nil {
		w.t.Fatal(err)
	}
	w.settle(0)
	return identity
}

func (w *world) wantStatus(install sandboxv1.RunnerInstallStatus, active, target int32) {
	w.t.Helper()
	got := w.get()
	if got.GetInstallStatus() != install || got.GetActiveRevision() != active || got.GetTargetRevision() != target {
		w.t.Errorf("%s, active %d, target %d; want %s, active %d, target %d", got.GetInstallStatus(), got.GetActiveRevision(),
			got.GetTargetRevision(), install, active, target)
	}
}

func (w *world) wantInstalled(want ...int32) {
	w.t.Helper()
	got, err := w.cluster.Revisions(w.t.Context(), "", "")
	if err != nil {
		w.t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("installed revisions %v, want %v", got, want)
	}
}

const (
	provisioning = sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_PROVISIONING
	ready        = sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_READY
	failed       = sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_FAILED
	deleting     = sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_DELETING
	connected    = sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_CONNECTED
	disconnected = sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_DISCONNECTED
)

func TestRunnerBecomesReadyWhenItConnects(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.wantStatus(provisioning, 0, 1)
		w.wantInstalled(1)
		w.connect(1)
		w.wantStatus(ready, 1, 1)
		got := w.get()
		if got.GetConnectionStatus() != connected || got.GetActiveConfigVersion() != "1.0.0" || got.GetRolloutInProgress() || got.GetLastHeartbeatTime() == nil {
			t.Errorf("runner = %v, want it connected with version 1.0.0", got)
		}
	})
}

func TestOverridesWithoutAMeaningAreToldAsTheNewestRevisionSaid(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		want := func(when string, want ...string) {
			t.Helper()
			if got := w.get().GetNotApplicableOverrides(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		want("before it has connected")
		identity := w.connectAs(1, &runnerv1.DescribeResponse{NotApplicable: []string{"scaling", "labels"}})
		want("connected", "scaling", "labels")
		w.fleet.Registry.Disconnected(w.t.Context(), identity)
		want("disconnected", "scaling", "labels")
		w.edit("two")
		w.connectAs(2, &runnerv1.DescribeResponse{NotApplicable: []string{"labels"}})
		want("after a rollout", "labels")
	})
}

func TestRunnerThatIsSilentForThirtySecondsIsDisconnected(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		identity := w.connect(1)
		w.settle(29 * time.Second)
		if got := w.get().GetConnectionStatus(); got != connected {
			t.Errorf("after 29 s: %s", got)
		}
		w.fleet.Registry.Heartbeat(w.t.Context(), identity, time.Now())
		w.settle(29 * time.Second)
		if got := w.get().GetConnectionStatus(); got != connected {
			t.Errorf("29 s after a heartbeat: %s", got)
		}
		w.settle(2 * time.Second)
		if got := w.get(); got.GetConnectionStatus() != disconnected || got.GetInstallStatus() != ready {
			t.Errorf("31 s after a heartbeat: %s, %s; want ready and disconnected", got.GetInstallStatus(), got.GetConnectionStatus())
		}
	})
}

func TestFailedInstallTellsWhyAndRecovers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster.failing[1] = &sandboxv1.InstallError{Reason: sandboxv1.InstallError_RUNTIME_UNAVAILABLE, Message: "no runtime"}
		w.create(&sandboxv1.Policy{})
		w.wantStatus(failed, 0, 1)
		if got := w.get().GetInstallError(); got.GetReason() != sandboxv1.InstallError_RUNTIME_UNAVAILABLE || got.GetOccurredAt() == nil {
			t.Errorf("install error = %v", got)
		}
		w.cluster.change(func() { delete(w.cluster.failing, 1) })
		w.connect(1)
		w.wantStatus(ready, 1, 1)
		if got := w.get().GetInstallError(); got != nil {
			t.Errorf("install error = %v after it became ready", got)
		}
	})
}

func TestRunnerThatNeverConnectsIsOverdue(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.settle(5*time.Minute + time.Second)
		w.wantStatus(failed, 0, 1)
		if got := w.get().GetInstallError().GetReason(); got != sandboxv1.InstallError_ENROLLMENT_TIMEOUT {
			t.Errorf("reason = %s", got)
		}
	})
}

func TestUnreachableClusterFailsAndIsTriedAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster.unreachable = true
		w.create(&sandboxv1.Policy{})
		w.settle(6 * time.Minute)
		w.wantStatus(failed, 0, 1)
		w.cluster.change(func() { w.cluster.unreachable = false })
		w.settle(time.Minute)
		w.connect(1)
		w.wantStatus(ready, 1, 1)
	})
}

func TestReconcilerGoesOnWhereItWasStopped(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.restart()
		w.connect(1)
		w.wantStatus(ready, 1, 1)
		token := w.cluster.tokens[1]
		w.edit("two")
		w.restart()
		if w.cluster.tokens[1] != token {
			t.Error("the restarted control plane gave the revision another enrolment token")
		}
		w.connect(1)
		w.wantStatus(ready, 1, 2)
		w.connect(2)
		w.wantStatus(ready, 2, 2)
		w.wantInstalled(2)
		w.cluster.change(func() { w.cluster.unreachable = true })
		w.remove()
		w.restart()
		w.cluster.change(func() { w.cluster.unreachable = false })
		w.settle(10 * time.Minute)
		if !w.gone() {
			t.Errorf("the runner is still there: %v", w.get())
		}
	})
}

func TestDefaultPolicyIsStoredAtTheFirstConnectionAndOverwritesNone(t *testing.T) {
	inWorld(t, func(w *world) {
		created := w.create(nil)
		if created.GetPolicy() != nil {
			t.Errorf("policy = %v before the runner has connected", created.GetPolicy())
		}
		w.connect(1)
		got := w.get()
		if diff := cmp.Diff(w.cfg.DefaultPolicy, got.GetPolicy(), protocmp.Transform()); diff != "" {
			t.Errorf("policy differs (-want +got):\n%s", diff)
		}
		if got.GetEtag() == created.GetEtag() {
			t.Error("the policy changed, its etag did not")
		}
	})
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.connect(1)
		if got := w.get().GetPolicy(); got == nil || got.GetDisplayName() != "" {
			t.Errorf("policy = %v, want the empty one that was set", got)
		}
	})
}

func TestPolicyIsPushedWhenItChanges(t *testing.T) {
	inWorld(t, func(w *world) {
		created := w.create(&sandboxv1.Policy{})
		w.connect(1)
		updated, err := w.fleet.Management.UpdateManagedRunner(w.admin, &sandboxv1.UpdateManagedRunnerRequest{
			RunnerId:      w.key.RunnerID,
			ManagedRunner: &sandboxv1.ManagedRunner{Etag: created.GetEtag(), Policy: &sandboxv1.Policy{DisplayName: "new"}},
			UpdateMask:    &fieldmaskpb.FieldMask{Paths: []string{"policy"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		runner, _, err := w.fleet.Registry.Runner(w.t.Context(), w.key)
		if err != nil || runner.Policy.ETag != updated.GetEtag() {
			t.Errorf("the gateway sees policy %q, %v; want %q at once", runner.Policy.ETag, err, updated.GetEtag())
		}
		w.settle(0)
		w.gateway.mu.Lock()
		defer w.gateway.mu.Unlock()
		if last := w.gateway.pushed[len(w.gateway.pushed)-1]; last != updated.GetEtag() {
			t.Errorf("pushed %v, want %q last", w.gateway.pushed, updated.GetEtag())
		}
	})
}

func TestHeartbeatsAreStoredNowAndThen(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		identity := w.connect(1)
		for range 30 {
			w.settle(10 * time.Second)
			w.fleet.Registry.Heartbeat(w.t.Context(), identity, time.Now())
		}
		w.settle(0)
		record, err := w.store.Runner(w.t.Context(), w.key)
		if err != nil {
			t.Fatal(err)
		}
		if lag := time.Since(record.LastHeartbeatTime); lag > 2*time.Minute {
			t.Errorf("the stored heartbeat is %s old", lag)
		}
	})
}
