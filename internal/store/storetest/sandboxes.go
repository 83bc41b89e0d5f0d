// Package storetest is what every store must do, one suite for each interface.
//
// A store's own tests call the suites; they know nothing of how it is made.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// epoch is when every suite begins.
var epoch = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// Sandbox makes a record that is filled in.
func Sandbox(organizationID, sandboxID string, created time.Time, tags ...string) *gateway.Record {
	exit := int32(0)
	return &gateway.Record{
		SandboxID:      sandboxID,
		OrganizationID: organizationID,
		UserID:         "user-1",
		RunnerID:       "runner-1",
		Spec:           &sandboxv1.SandboxSpec{Tags: tags},
		Status:         &sandboxv1.SandboxStatus{State: sandboxv1.State_STATE_RUNNING, ExitCode: &exit},
		Generation:     1,
		CreateTime:     created,
	}
}

// Sandboxes is the suite of gateway.Store. open makes an empty store that ends
// with the test.
func Sandboxes(t *testing.T, open func(*testing.T) gateway.Store) {
	t.Run("a sandbox reads back as it was inserted", func(t *testing.T) {
		store := open(t)
		want := Sandbox("org", "sb-1", epoch, "b", "a")
		want.RequestID, want.RequestDigest = "request", []byte{1, 2}
		want.EndTime, want.TerminateRequested = epoch.Add(time.Minute), true
		insert(t, store, want)
		got, err := store.Sandbox(t.Context(), "org", "sb-1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("record differs (-want +got):\n%s", diff)
		}
	})

	t.Run("an organization does not see another's sandboxes", func(t *testing.T) {
		store := open(t)
		insert(t, store, Sandbox("org", "sb-1", epoch, "tag"))
		if _, err := store.Sandbox(t.Context(), "other", "sb-1"); !errors.Is(err, gateway.ErrSandboxNotFound) {
			t.Errorf("Sandbox = %v, want ErrSandboxNotFound", err)
		}
		if got := list(t, store, gateway.ListQuery{OrganizationID: "other", Tags: []string{"tag"}}); len(got) != 0 {
			t.Errorf("listed %v, want none", got)
		}
		_, err := store.ChangeSandbox(t.Context(), "other", "sb-1", func(*gateway.Record) bool { return true })
		if !errors.Is(err, gateway.ErrSandboxNotFound) {
			t.Errorf("ChangeSandbox = %v, want ErrSandboxNotFound", err)
		}
	})

	t.Run("a request id is used once, however many ask at the same time", func(t *testing.T) {
		store := open(t)
		const callers = 8
		ids, insertions := make([]string, callers), make([]bool, callers)
		inParallel(t, callers, func(i int) error {
			record := Sandbox("org", fmt.Sprintf("sb-%d", i), epoch)
			record.RequestID, record.RequestDigest = "same", []byte("digest")
			stored, inserted, err := store.InsertSandbox(context.WithoutCancel(t.Context()), record)
			if err != nil {
				return err
			}
			ids[i], insertions[i] = stored.SandboxID, inserted
			return nil
		})
		if unique := slices.Compact(slices.Clone(ids)); len(unique) != 1 {
			t.Errorf("answered with sandboxes %v, want one", ids)
		}
		if n := count(insertions, true); n != 1 {
			t.Errorf("%d insertions, want 1", n)
		}
		other := Sandbox("other", "sb-x", epoch)
		other.RequestID = "same"
		if _, inserted, err := store.InsertSandbox(t.Context(), other); err != nil || !inserted {
			t.Errorf("another organization's use of the id: inserted=%v, %v; want true", inserted, err)
		}
	})

	t.Run("a sandbox is found by the request that made it, in its organization only", func(t *testing.T) {
		store := open(t)
		want := Sandbox("org", "sb-1", epoch)
		want.RequestID = "request"
		insert(t, store, want)
		insert(t, store, Sandbox("org", "sb-2", epoch))
		got, err := store.SandboxByRequest(t.Context(), "org", "request")
		if err != nil || got.SandboxID != "sb-1" {
			t.Errorf("SandboxByRequest = %v, %v; want sb-1", got, err)
		}
		for _, where := range [][2]string{{"other", "request"}, {"org", "another"}} {
			if _, err := store.SandboxByRequest(t.Context(), where[0], where[1]); !errors.Is(err, gateway.ErrSandboxNotFound) {
				t.Errorf("SandboxByRequest(%q) = %v, want ErrSandboxNotFound", where, err)
			}
		}
	})

	t.Run("a change that answers false writes nothing", func(t *testing.T) {
		store := open(t)
		insert(t, store, Sandbox("org", "sb-1", epoch))
		_, err := store.ChangeSandbox(t.Context(), "org", "sb-1", func(r *gateway.Record) bool {
			r.Generation = 99
			return false
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := store.Sandbox(t.Context(), "org", "sb-1")
		if err != nil || got.Generation != 1 {
			t.Errorf("generation = %d, %v; want 1", got.Generation, err)
		}
	})

	t.Run("changes at the same time are not lost", func(t *testing.T) {
		store := open(t)
		insert(t, store, Sandbox("org", "sb-1", epoch))
		const writers, each = 8, 10
		inParallel(t, writers, func(int) error {
			for range each {
				_, err := store.ChangeSandbox(context.WithoutCancel(t.Context()), "org", "sb-1", func(r *gateway.Record) bool {
					r.Generation++
					return true
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		got, err := store.Sandbox(t.Context(), "org", "sb-1")
		if err != nil || got.Generation != 1+writers*each {
			t.Errorf("generation = %d, %v; want %d", got.Generation, err, 1+writers*each)
		}
	})

	t.Run("a list has only what every condition lets through", func(t *testing.T) {
		store := open(t)
		first := Sandbox("org", "sb-1", epoch, "a", "b")
		second := Sandbox("org", "sb-2", epoch.Add(time.Second), "a")
		second.RunnerID = "runner-2"
		ended := Sandbox("org", "sb-3", epoch.Add(2*time.Second), "a", "b")
		ended.Status.State, ended.EndTime = sandboxv1.State_STATE_COMPLETED, epoch.Add(time.Hour)
		volume := Sandbox("org", "sb-4", epoch.Add(3*time.Second))
		volume.Spec.Volumes = []*sandboxv1.SandboxVolume{{Name: "data", Source: &sandboxv1.SandboxVolume_VolumeId{VolumeId: "vol-1"}}}
		for _, record := range []*gateway.Record{first, second, ended, volume} {
			insert(t, store, record)
		}
		for _, test := range []struct {
			name  string
			query gateway.ListQuery
			want  []string
		}{
			{"live ones, newest first", gateway.ListQuery{}, []string{"sb-4", "sb-2", "sb-1"}},
			{"ended ones too", gateway.ListQuery{IncludeEnded: true}, []string{"sb-4", "sb-3", "sb-2", "sb-1"}},
			{"one tag", gateway.ListQuery{Tags: []string{"a"}}, []string{"sb-2", "sb-1"}},
			{"every tag", gateway.ListQuery{Tags: []string{"a", "b"}, IncludeEnded: true}, []string{"sb-3", "sb-1"}},
			{"a tag that nobody has", gateway.ListQuery{Tags: []string{"a", "c"}}, nil},
			{"a state", gateway.ListQuery{State: sandboxv1.State_STATE_COMPLETED, IncludeEnded: true}, []string{"sb-3"}},
			{"runners", gateway.ListQuery{RunnerIDs: []string{"runner-2", "runner-3"}}, []string{"sb-2"}},
			{"a volume", gateway.ListQuery{VolumeIDs: []string{"vol-1"}}, []string{"sb-4"}},
			{"one of the volumes", gateway.ListQuery{VolumeIDs: []string{"vol-0", "vol-1"}}, []string{"sb-4"}},
			{"a tag and a volume", gateway.ListQuery{Tags: []string{"a"}, VolumeIDs: []string{"vol-1"}}, nil},
		} {
			t.Run(test.name, func(t *testing.T) {
				test.query.OrganizationID = "org"
				if diff := cmp.Diff(test.want, list(t, store, test.query)); diff != "" {
					t.Errorf("sandboxes differ (-want +got):\n%s", diff)
				}
			})
		}
	})

	t.Run("pages hold every sandbox that was there throughout, once, while others come and go", func(t *testing.T) {
		for _, tags := range [][]string{nil, {"page"}} {
			store := open(t)
			var want []string
			for i := range 25 {
				// Several share an instant, so that the id must decide.
				id := fmt.Sprintf("sb-%02d", i)
				insert(t, store, Sandbox("org", id, epoch.Add(time.Duration(i/3)*time.Second), "page"))
				want = append([]string{id}, want...)
			}
			query := gateway.ListQuery{OrganizationID: "org", Tags: tags, Limit: 4}
			var got []string
			for page := 0; ; page++ {
				records, err := store.Sandboxes(t.Context(), query)
				if err != nil {
					t.Fatal(err)
				}
				for _, record := range records {
					got = append(got, record.SandboxID)
				}
				if len(records) < query.Limit {
					break
				}
				last := records[len(records)-1]
				query.AfterCreateTime, query.AfterSandboxID = last.CreateTime, last.SandboxID
				insert(t, store, Sandbox("org", fmt.Sprintf("sb-new-%d", page), epoch.Add(time.Hour), "page"))
				end(t, store, last.SandboxID)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("tags %v: pages differ (-want +got):\n%s", tags, diff)
			}
		}
	})

	t.Run("live sandboxes are those of the runner that have not ended", func(t *testing.T) {
		store := open(t)
		insert(t, store, Sandbox("org", "sb-1", epoch))
		insert(t, store, Sandbox("org", "sb-2", epoch))
		other := Sandbox("org", "sb-3", epoch)
		other.RunnerID = "runner-2"
		insert(t, store, other)
		end(t, store, "sb-1")
		records, err := store.LiveSandboxes(t.Context(), gateway.RunnerKey{OrganizationID: "org", RunnerID: "runner-1"})
		if err != nil {
			t.Fatal(err)
		}
		if len(records) != 1 || records[0].SandboxID != "sb-2" {
			t.Errorf("live = %v, want sb-2", records)
		}
	})

	t.Run("old sandboxes are forgotten once they have ended, and their tags too", func(t *testing.T) {
		store := open(t)
		insert(t, store, Sandbox("org", "sb-1", epoch, "a"))
		insert(t, store, Sandbox("org", "sb-2", epoch, "a"))
		end(t, store, "sb-1")
		deleted, err := store.DeleteSandboxesEndedBefore(t.Context(), epoch.Add(24*time.Hour))
		if err != nil || deleted != 1 {
			t.Errorf("deleted %d, %v; want 1", deleted, err)
		}
		got := list(t, store, gateway.ListQuery{OrganizationID: "org", Tags: []string{"a"}, IncludeEnded: true})
		if diff := cmp.Diff([]string{"sb-2"}, got); diff != "" {
			t.Errorf("sandboxes differ (-want +got):\n%s", diff)
		}
	})
}

func insert(t *testing.T, store gateway.Store, record *gateway.Record) {
	t.Helper()
	if _, inserted, err := store.InsertSandbox(t.Context(), record); err != nil || !inserted {
		t.Fatalf("insert %s: inserted=%v, %v", record.SandboxID, inserted, err)
	}
}

func end(t *testing.T, store gateway.Store, sandboxID string) {
	t.Helper()
	_, err := store.ChangeSandbox(t.Context(), "org", sandboxID, func(r *gateway.Record) bool {
		r.Status.State, r.EndTime = sandboxv1.State_STATE_COMPLETED, epoch.Add(time.Hour)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, store gateway.Store, query gateway.ListQuery) []string {
	t.Helper()
	if query.Limit == 0 {
		query.Limit = 100
	}
	records, err := store.Sandboxes(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, record := range records {
		ids = append(ids, record.SandboxID)
	}
	return ids
}

// inParallel runs n callers at once and fails the test for the first error.
func inParallel(t *testing.T, n int, call func(i int) error) {
	t.Helper()
	var group sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		group.Go(func() { errs[i] = call(i) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func count[T comparable](values []T, want T) (n int) {
	for _, value := range values {
		if value == want {
			n++
		}
	}
	return n
}
