package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// FleetStore is what fleet declares, and what its rows belong to.
type FleetStore interface {
	fleet.Store
	auth.OrganizationStore
}

// Fleet is the suite of fleet.Store. open makes an empty store that ends with
// the test.
func Fleet(t *testing.T, open func(*testing.T) FleetStore) {
	clusters(t, open)
	runners(t, open)
	requests(t, open)
	credentials(t, open)
}

func clusters(t *testing.T, open func(*testing.T) FleetStore) {
	t.Run("a cluster is found by UUID and by name, in its organization", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		for _, name := range []string{"c1", "name-c1"} {
			got, err := store.Cluster(t.Context(), "org", name)
			if err != nil || got.ClusterID != "c1" || got.Kind != adminv1.ClusterKind_CLUSTER_KIND_LOCAL || !got.CreateTime.Equal(epoch) {
				t.Errorf("Cluster(%q) = %v, %v", name, got, err)
			}
		}
		if _, err := store.Cluster(t.Context(), "other", "c1"); !errors.Is(err, fleet.ErrClusterNotFound) {
			t.Errorf("another organization's look: %v, want ErrClusterNotFound", err)
		}
	})

	t.Run("a cluster's name is taken once in an organization", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		again := cluster("c2")
		again.Name = "name-c1"
		if err := store.InsertCluster(t.Context(), again, audit.Entry{}); !errors.Is(err, fleet.ErrClusterExists) {
			t.Errorf("InsertCluster = %v, want ErrClusterExists", err)
		}
		again.OrganizationID = "other"
		if err := store.InsertCluster(t.Context(), again, audit.Entry{}); err != nil {
			t.Errorf("the same name in another organization: %v", err)
		}
	})

	t.Run("a cluster with a runner stays", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		insertRunner(t, store, runner("r1", "c1"))
		var taken *fleet.ClusterTakenError
		if err := store.DeleteCluster(t.Context(), "org", "c1", audit.Entry{}); !errors.As(err, &taken) || taken.RunnerID != "r1" {
			t.Errorf("DeleteCluster = %v, want a ClusterTakenError that names r1", err)
		}
		if got, err := store.Cluster(t.Context(), "org", "c1"); err != nil || got.RunnerID != "r1" {
			t.Errorf("Cluster = %v, %v; want one with runner r1", got, err)
		}
		if err := store.DeleteRunner(t.Context(), key("r1"), "uid-r1", audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		if err := store.DeleteCluster(t.Context(), "org", "c1", audit.Entry{}); err != nil {
			t.Errorf("DeleteCluster without a runner: %v", err)
		}
		if err := store.DeleteCluster(t.Context(), "org", "c1", audit.Entry{}); !errors.Is(err, fleet.ErrClusterNotFound) {
			t.Errorf("DeleteCluster again: %v, want ErrClusterNotFound", err)
		}
	})
}

func runners(t *testing.T, open func(*testing.T) FleetStore) {
	t.Run("a runner reads back as it was inserted, presence included", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		want := runner("r1", "c1")
		insertRunner(t, store, want)
		got, err := store.Runner(t.Context(), key("r1"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("runner differs (-want +got):\n%s", diff)
		}
		revision, err := store.Revision(t.Context(), key("r1"), 1)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(revisionOne(), revision, protocmp.Transform()); diff != "" {
			t.Errorf("revision differs (-want +got):\n%s", diff)
		}
		if _, err := store.Revision(t.Context(), key("r1"), 2); !errors.Is(err, fleet.ErrRevisionNotFound) {
			t.Errorf("unknown revision: %v, want ErrRevisionNotFound", err)
		}
	})

	t.Run("no policy and an empty one stay apart", func(t *testing.T) {
		store := withClusters(t, open, "c1", "c2")
		absent, empty := runner("r1", "c1"), runner("r2", "c2")
		absent.Policy, empty.Policy = nil, &sandboxv1.Policy{}
		insertRunner(t, store, absent)
		insertRunner(t, store, empty)
		if got, err := store.Runner(t.Context(), key("r1")); err != nil || got.Policy != nil {
			t.Errorf("policy = %v, %v; want none", got.Policy, err)
		}
		if got, err := store.Runner(t.Context(), key("r2")); err != nil || got.Policy == nil {
			t.Errorf("policy = %v, %v; want an empty one", got.Policy, err)
		}
	})

	t.Run("a runner that does not fit is refused with the reason, and leaves nothing", func(t *testing.T) {
		store := withClusters(t, open, "c1", "c2")
		insertRunner(t, store, runner("r1", "c1"))
		if _, err := store.InsertRunner(t.Context(), newRunner(runner("r1", "c2"))); !errors.Is(err, fleet.ErrRunnerExists) {
			t.Errorf("taken id: %v, want ErrRunnerExists", err)
		}
		var taken *fleet.ClusterTakenError
		if _, err := store.InsertRunner(t.Context(), newRunner(runner("r2", "c1"))); !errors.As(err, &taken) || taken.RunnerID != "r1" {
			t.Errorf("taken cluster: %v, want a ClusterTakenError that names r1", err)
		}
		if _, err := store.InsertRunner(t.Context(), newRunner(runner("r2", "c9"))); !errors.Is(err, fleet.ErrClusterNotFound) {
			t.Errorf("unknown cluster: %v, want ErrClusterNotFound", err)
		}
		if _, err := store.Revision(t.Context(), key("r2"), 1); !errors.Is(err, fleet.ErrRevisionNotFound) {
			t.Errorf("the refused runner's revision: %v, want none", err)
		}
	})

	t.Run("of many that want one cluster, one gets it", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		const callers = 8
		won := make([]bool, callers)
		inParallel(t, callers, func(i int) error {
			_, err := store.InsertRunner(context.WithoutCancel(t.Context()), newRunner(runner(fmt.Sprintf("r%d", i), "c1")))
			var taken *fleet.ClusterTakenError
			if errors.As(err, &taken) {
				return nil
			}
			won[i] = err == nil
			return err
		})
		if n := count(won, true); n != 1 {
			t.Errorf("%d runners on one cluster", n)
		}
	})

	t.Run("a change writes the record, the revision and nothing when it declines", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		insertRunner(t, store, runner("r1", "c1"))
		refusal := errors.New("refused")
		_, err := store.ChangeRunner(t.Context(), key("r1"), func(r *fleet.RunnerRecord) (*fleet.Write, error) {
			r.DisplayName = "never"
			return nil, refusal
		})
		if !errors.Is(err, refusal) {
			t.Errorf("ChangeRunner = %v, want the change's own error", err)
		}
		if _, err := store.ChangeRunner(t.Context(), key("r1"), func(r *fleet.RunnerRecord) (*fleet.Write, error) {
			r.DisplayName = "never"
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		if got, err := store.Runner(t.Context(), key("r1")); err != nil || got.DisplayName == "never" {
			t.Errorf("a declined change was written: %v, %v", got, err)
		}
		second := revisionOne()
		second.Number = 2
		want, err := store.ChangeRunner(t.Context(), key("r1"), func(r *fleet.RunnerRecord) (*fleet.Write, error) {
			r.DisplayName, r.Policy, r.ETag, r.TargetRevision, r.LatestRevision = "new", nil, "etag-2", 2, 2
			r.Phase, r.InstallError = fleet.PhaseFailed, &sandboxv1.InstallError{Message: "why"}
			r.LastHeartbeatTime = epoch.Add(time.Hour)
			return &fleet.Write{Revision: &second, Audit: &audit.Entry{OrganizationID: "org", Time: epoch}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := store.Runner(t.Context(), key("r1"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("runner differs (-want +got):\n%s", diff)
		}
		if _, err := store.Revision(t.Context(), key("r1"), 2); err != nil {
			t.Errorf("the new revision: %v", err)
		}
	})

	t.Run("changes at the same time are not lost", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		insertRunner(t, store, runner("r1", "c1"))
		inParallel(t, 20, func(int) error {
			_, err := store.ChangeRunner(context.WithoutCancel(t.Context()), key("r1"), func(r *fleet.RunnerRecord) (*fleet.Write, error) {
				r.LatestRevision++
				return &fleet.Write{}, nil
			})
			return err
		})
		if got, err := store.Runner(t.Context(), key("r1")); err != nil || got.LatestRevision != 21 {
			t.Errorf("latest revision = %d, %v; want 21", got.LatestRevision, err)
		}
	})

	t.Run("pages hold every runner that was there throughout, once, while others come and go", func(t *testing.T) {
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprintf("c%02d", i))
		}
		store := withClusters(t, open, append(ids, "c90", "c91", "c92", "c93", "c94")...)
		for _, id := range ids {
			insertRunner(t, store, runner("r"+id, id))
		}
		var got []string
		query := fleet.RunnerQuery{OrganizationID: "org", Limit: 3}
		for page := 0; ; page++ {
			records, err := store.Runners(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			for _, record := range records {
				got = append(got, record.ClusterID)
			}
			if len(records) < query.Limit {
				break
			}
			query.AfterRunnerID = records[len(records)-1].RunnerID
			insertRunner(t, store, runner(fmt.Sprintf("a-new-%d", page), fmt.Sprintf("c9%d", page)))
			if err := store.DeleteRunner(t.Context(), key(query.AfterRunnerID), "uid-"+query.AfterRunnerID, audit.Entry{}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(ids, got); diff != "" {
			t.Errorf("pages differ (-want +got):\n%s", diff)
		}
	})

	t.Run("a list has only what every condition lets through", func(t *testing.T) {
		store := withClusters(t, open, "c1", "c2")
		second := runner("r2", "c2")
		second.Zone, second.RunnerGroupID = "zone-b", "gpu"
		insertRunner(t, store, runner("r1", "c1"))
		insertRunner(t, store, second)
		for _, query := range []fleet.RunnerQuery{{Zone: "zone-b"}, {RunnerGroupID: "gpu"}, {ClusterID: "c2"}, {Zone: "zone-b", ClusterID: "c2"}} {
			query.OrganizationID, query.Limit = "org", 10
			records, err := store.Runners(t.Context(), query)
			if err != nil || len(records) != 1 || records[0].RunnerID != "r2" {
				t.Errorf("%+v: %v, %v; want r2", query, records, err)
			}
		}
		records, err := store.Runners(t.Context(), fleet.RunnerQuery{OrganizationID: "other", Limit: 10})
		if err != nil || len(records) != 0 {
			t.Errorf("another organization sees %v, %v", records, err)
		}
		keys, err := store.RunnerKeys(t.Context())
		if err != nil || len(keys) != 2 {
			t.Errorf("RunnerKeys = %v, %v; want both", keys, err)
		}
	})

	t.Run("deletion spares a later runner of the same id", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		insertRunner(t, store, runner("r1", "c1"))
		if err := store.DeleteRunner(t.Context(), key("r1"), "an earlier uid", audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Runner(t.Context(), key("r1")); err != nil {
			t.Errorf("Runner = %v, want it to be there", err)
		}
	})
}

func requests(t *testing.T, open func(*testing.T) FleetStore) {
	t.Run("a request id gets its first answer until it expires", func(t *testing.T) {
		store := withClusters(t, open, "c1", "c2")
		first := newRunner(runner("r1", "c1"))
		first.RequestID, first.RequestDigest, first.Answer = "id", []byte("input"), []byte("answer")
		first.RequestExpireTime = epoch.Add(24 * time.Hour)
		if answer, err := store.InsertRunner(t.Context(), first); err != nil || answer != nil {
			t.Fatalf("InsertRunner = %q, %v", answer, err)
		}
		again := first
		again.Answer = []byte("another answer")
		if answer, err := store.InsertRunner(t.Context(), again); err != nil || string(answer) != "answer" {
			t.Errorf("the same input: %q, %v; want the first answer", answer, err)
		}
		other := again
		other.RequestDigest = []byte("other input")
		if _, err := store.InsertRunner(t.Context(), other); !errors.Is(err, fleet.ErrRequestIDReused) {
			t.Errorf("another input: %v, want ErrRequestIDReused", err)
		}
		late := newRunner(runner("r2", "c2"))
		late.Runner.CreateTime = epoch.Add(25 * time.Hour)
		late.RequestID, late.RequestDigest, late.Answer = "id", []byte("later input"), []byte("later answer")
		late.RequestExpireTime = epoch.Add(49 * time.Hour)
		if answer, err := store.InsertRunner(t.Context(), late); err != nil || answer != nil {
			t.Errorf("after it expired: %q, %v; want a new runner", answer, err)
		}
	})

	t.Run("a request id outlives its runner", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		first := newRunner(runner("r1", "c1"))
		first.RequestID, first.RequestDigest, first.Answer = "id", []byte("input"), []byte("answer")
		first.RequestExpireTime = epoch.Add(24 * time.Hour)
		if _, err := store.InsertRunner(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := store.DeleteRunner(t.Context(), key("r1"), "uid-r1", audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		if answer, err := store.InsertRunner(t.Context(), first); err != nil || string(answer) != "answer" {
			t.Errorf("a retry after deletion: %q, %v; want the first answer", answer, err)
		}
		if err := store.DeleteExpiredRequests(t.Context(), epoch.Add(25*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if answer, err := store.InsertRunner(t.Context(), first); err != nil || answer != nil {
			t.Errorf("after the id was forgotten: %q, %v; want a new runner", answer, err)
		}
	})
}

func credentials(t *testing.T, open func(*testing.T) FleetStore) {
	credential := func(kind fleet.CredentialKind, revision int32, hash byte) fleet.Credential {
		return fleet.Credential{
			RunnerIdentity: gateway.RunnerIdentity{RunnerKey: key("r1"), Revision: revision},
			Kind:           kind, Hash: [32]byte{hash}, CreateTime: epoch,
		}
	}
	put := func(t *testing.T, store FleetStore, c fleet.Credential) {
		t.Helper()
		if err := store.PutCredential(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	unknown := func(t *testing.T, store FleetStore, kind fleet.CredentialKind, hash byte) {
		t.Helper()
		if got, err := store.Credential(t.Context(), kind, [32]byte{hash}); !errors.Is(err, fleet.ErrCredentialNotFound) {
			t.Errorf("credential %d = %v, %v; want ErrCredentialNotFound", hash, got, err)
		}
	}

	t.Run("a credential is found by its kind and hash, and replaced by the next", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		insertRunner(t, store, runner("r1", "c1"))
		put(t, store, credential(fleet.CredentialEnrollment, 1, 1))
		put(t, store, credential(fleet.CredentialSession, 1, 2))
		put(t, store, credential(fleet.CredentialSession, 2, 3))
		want := credential(fleet.CredentialSession, 1, 2)
		if got, err := store.Credential(t.Context(), fleet.CredentialSession, [32]byte{2}); err != nil || got != want {
			t.Errorf("credential = %v, %v; want %v", got, err, want)
		}
		unknown(t, store, fleet.CredentialEnrollment, 2)
		put(t, store, credential(fleet.CredentialSession, 1, 4))
		unknown(t, store, fleet.CredentialSession, 2)
		if err := store.DeleteCredentials(t.Context(), key("r1"), 1); err != nil {
			t.Fatal(err)
		}
		unknown(t, store, fleet.CredentialEnrollment, 1)
		unknown(t, store, fleet.CredentialSession, 4)
		if _, err := store.Credential(t.Context(), fleet.CredentialSession, [32]byte{3}); err != nil {
			t.Errorf("the other revision's credential: %v", err)
		}
	})

	t.Run("credentials go with their runner", func(t *testing.T) {
		store := withClusters(t, open, "c1")
		insertRunner(t, store, runner("r1", "c1"))
		put(t, store, credential(fleet.CredentialSession, 1, 1))
		if err := store.DeleteRunner(t.Context(), key("r1"), "uid-r1", audit.Entry{}); err != nil {
			t.Fatal(err)
		}
		unknown(t, store, fleet.CredentialSession, 1)
		if err := store.PutCredential(t.Context(), credential(fleet.CredentialSession, 1, 1)); !errors.Is(err, fleet.ErrRunnerNotFound) {
			t.Errorf("PutCredential = %v, want ErrRunnerNotFound", err)
		}
	})
}

func withClusters(t *testing.T, open func(*testing.T) FleetStore, ids ...string) FleetStore {
	t.Helper()
	store := open(t)
	organizations(t, store, "org", "other")
	for _, id := range ids {
		if err := store.InsertCluster(t.Context(), cluster(id), audit.Entry{OrganizationID: "org", Time: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

func cluster(id string) fleet.Cluster {
	return fleet.Cluster{
		OrganizationID: "org", ClusterID: id, Name: "name-" + id, Zone: "zone-a",
		Kind: adminv1.ClusterKind_CLUSTER_KIND_LOCAL, CreateTime: epoch,
	}
}

func key(runnerID string) gateway.RunnerKey {
	return gateway.RunnerKey{OrganizationID: "org", RunnerID: runnerID}
}

// runner makes a record in which everything that has presence is there.
func runner(runnerID, clusterID string) *fleet.RunnerRecord {
	base, err := structpb.NewStruct(map[string]any{})
	if err != nil {
		panic(err) // The empty map has a Struct.
	}
	return &fleet.RunnerRecord{
		RunnerKey:     key(runnerID),
		UID:           "uid-" + runnerID,
		ClusterID:     clusterID,
		Zone:          "zone-a",
		RunnerGroupID: "default",
		DisplayName:   "a runner",
		Spec: &sandboxv1.ManagedRunnerSpec{
			ReleaseChannel: sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE,
			MaintenancePolicy: &sandboxv1.MaintenancePolicy{
				Windows:    []*sandboxv1.MaintenanceWindow{{Cron: "0 2 * * SAT", DurationSeconds: 3600}},
				Exclusions: []*sandboxv1.MaintenanceExclusion{{StartTime: timestamppb.New(epoch), EndTime: timestamppb.New(epoch.Add(time.Nanosecond))}},
			},
			Overrides:             &sandboxv1.RunnerOverrides{Affinity: base, Env: map[string]string{"EMPTY": ""}},
			EnforceResourceLimits: proto.Bool(false),
			DataPlane: &sandboxv1.RunnerDataPlaneConfig{
				Exposure: &sandboxv1.RunnerDataPlaneConfig_Disabled{Disabled: &sandboxv1.RunnerDataPlaneDisabledConfig{}},
			},
		},
		Policy: &sandboxv1.Policy{
			Base: base,
			Constraints: &sandboxv1.PolicyConstraints{
				Resources: &sandboxv1.ResourceConstraints{MaxGpuCount: proto.Int64(9007199254740993)},
				Image:     &sandboxv1.ImageConstraints{},
			},
			ControlPlaneAccess: &sandboxv1.ControlPlaneAccessPolicy{SourceIpAllowlist: &sandboxv1.SourceIpAllowlist{}},
		},
		ETag:           "etag-1",
		Phase:          fleet.PhasePending,
		PhaseTime:      epoch,
		RolloutTime:    epoch,
		LatestRevision: 1,
		TargetRevision: 1,
		CreateTime:     epoch,
		UpdateTime:     epoch,
		Reading:        fleet.Reading{ClusterName: "name-" + clusterID, Target: revisionOne()},
	}
}

func revisionOne() fleet.Revision {
	return fleet.Revision{
		Number: 1, Version: "1.0.0", CreateTime: epoch, Author: "admin",
		Deployment: &sandboxv1.DeploymentSpec{Env: map[string]string{"A": "b"}},
	}
}

func newRunner(record *fleet.RunnerRecord) fleet.NewRunner {
	return fleet.NewRunner{
		Runner:   record,
		Revision: revisionOne(),
		Audit:    audit.Entry{OrganizationID: record.OrganizationID, Time: epoch, Action: "CreateManagedRunner", Resource: record.RunnerID},
	}
}

func insertRunner(t *testing.T, store fleet.Store, record *fleet.RunnerRecord) {
	t.Helper()
	if answer, err := store.InsertRunner(t.Context(), newRunner(record)); err != nil || answer != nil {
		t.Fatalf("insert runner %s: %q, %v", record.RunnerID, answer, err)
	}
}
