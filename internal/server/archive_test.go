package server

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/store/postgrestest"
)

// A serving server is backed up, and what it has answered is served again from
// a database of the other kind, to the same tokens.
func TestABackupOfAServingServerIsServedFromTheOtherDatabase(t *testing.T) {
	database := postgrestest.Start(t)
	for name, places := range map[string]struct{ from, to string }{
		"embedded to PostgreSQL": {to: database.Database(t)},
		"PostgreSQL to embedded": {from: database.Database(t)},
	} {
		t.Run(name, func(t *testing.T) {
			from := Place{DataDir: t.TempDir(), DatabaseURL: places.from}
			first := start(t, at(from))
			options := connect.WithClientOptions(bearer(first.admin))
			cluster, err := adminv1connect.NewClusterServiceClient(first.client, first.URL(), options).CreateCluster(t.Context(), &adminv1.CreateClusterRequest{
				Cluster: &adminv1.Cluster{Name: "c", Zone: "zone-a", Kind: adminv1.ClusterKind_CLUSTER_KIND_LOCAL},
			})
			if err != nil {
				t.Fatal(err)
			}
			created, err := sandboxv1connect.NewRunnerManagementServiceClient(first.client, first.URL(), options).CreateManagedRunner(t.Context(), &sandboxv1.CreateManagedRunnerRequest{
				ManagedRunner: &sandboxv1.ManagedRunner{
					Identity:    &sandboxv1.RunnerIdentity{RunnerId: "r", Zone: "zone-a", ClusterId: cluster.GetCluster().GetClusterId()},
					DisplayName: "kept", Policy: &sandboxv1.Policy{},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			var archive bytes.Buffer
			if _, err := Backup(t.Context(), from, "1.0.0", &archive); err != nil {
				t.Fatal(err)
			}

			to := Place{DataDir: t.TempDir(), DatabaseURL: places.to}
			if _, err := Restore(t.Context(), to, bytes.NewReader(archive.Bytes()), slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			second := start(t, at(to))
			got, err := sandboxv1connect.NewRunnerManagementServiceClient(second.client, second.URL(), options).
				GetManagedRunner(t.Context(), &sandboxv1.GetManagedRunnerRequest{RunnerId: "r"})
			if err != nil || got.GetDisplayName() != "kept" || got.GetEtag() != created.GetEtag() {
				t.Errorf("after the restore: %v, %v", got, err)
			}
			if _, err := Restore(t.Context(), to, bytes.NewReader(archive.Bytes()), slog.New(slog.DiscardHandler)); err == nil ||
				!strings.Contains(err.Error(), "another server uses") {
				t.Errorf("a restore under a server: %v", err)
			}
		})
	}
}

func at(place Place) func(*Config) {
	return func(cfg *Config) { cfg.DataDir, cfg.DatabaseURL = place.DataDir, place.DatabaseURL }
}

func TestARestoreLeavesAnotherKeyAlone(t *testing.T) {
	from := Place{DataDir: t.TempDir()}
	if err := start(t, at(from)).stop(); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if _, err := Backup(t.Context(), from, "1.0.0", &archive); err != nil {
		t.Fatal(err)
	}
	to := Place{DataDir: t.TempDir()}
	key := filepath.Join(to.DataDir, enrollmentKeyFile)
	if err := os.WriteFile(key, bytes.Repeat([]byte{1}, enrollmentKeyBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), to, &archive, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), key) {
		t.Errorf("Restore = %v, want an error that names the key", err)
	}
	store, err := openStore(context.WithoutCancel(t.Context()), Config{DataDir: to.DataDir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := store.RunnerKeys(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("the database holds %v, %v", found, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

func TestABackupOfSomethingElseIsRefused(t *testing.T) {
	var archive bytes.Buffer
	if _, err := Backup(t.Context(), Place{DataDir: t.TempDir()}, "1.0.0", &archive); err == nil || archive.Len() > 0 {
		t.Errorf("Backup of an empty directory = %v, and wrote %d bytes", err, archive.Len())
	}
}
