package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/store/postgrestest"
)

// call is one request of the history, answer what came back.
type (
	call struct {
		method string
		runner string
		// policy is what a create or an update writes, etag what an update sends.
		policy, etag string
	}
	answer struct {
		reason apierr.Reason
		// policy, etag and deleting are what the runner is answered to be.
		policy, etag string
		deleting     bool
	}
	// clusterState is what one cluster has: a runner, or none.
	clusterState struct {
		runner, policy, etag string
		deleting             bool
	}
)

// clusterModel is what requests about runners of one cluster may answer, one
// after the other. A runner that is being deleted may be gone at any time.
func clusterModel() porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{clusterState{}} },
		Step: func(state, input, output any) (after []any) {
			s := state.(clusterState)
			states := []clusterState{s}
			if s.deleting {
				states = append(states, clusterState{})
			}
			for _, s := range states {
				if next, possible := s.step(input.(call), output.(answer)); possible {
					after = append(after, next)
				}
			}
			return after
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}).ToModel()
}

func (s clusterState) step(c call, a answer) (clusterState, bool) {
	there := s.runner == c.runner
	switch c.method {
	case "create":
		switch {
		case there:
			return s, a.reason == apierr.RunnerExists
		case s.runner != "":
			return s, a.reason == apierr.ClusterTaken
		}
		return clusterState{runner: c.runner, policy: c.policy, etag: a.etag}, a.reason == "" && a.etag != ""
	case "get":
		if !there {
			return s, a.reason == apierr.RunnerNotFound
		}
		return s, a == answer{policy: s.policy, etag: s.etag, deleting: s.deleting}
	case "update":
		switch {
		case !there:
			return s, a.reason == apierr.RunnerNotFound
		case s.deleting:
			return s, a.reason == apierr.RunnerDeleting
		case c.etag != s.etag:
			return s, a.reason == apierr.ETagMismatch
		}
		return clusterState{runner: s.runner, policy: c.policy, etag: a.etag}, a.reason == "" && a.etag != s.etag
	default:
		if !there {
			return s, a.reason == apierr.RunnerNotFound
		}
		s.deleting = true
		return s, a.reason == ""
	}
}

// historian sends requests and keeps what it has seen.
type historian struct {
	client  sandboxv1connect.RunnerManagementServiceClient
	cluster string
	began   time.Time
	mu      sync.Mutex
	history []porcupine.Operation
}

func (h *historian) send(t *testing.T, id int, c call) answer {
	t.Helper()
	ctx := t.Context()
	called := time.Since(h.began)
	var runner *sandboxv1.ManagedRunner
	var err error
	switch c.method {
	case "create":
		runner, err = h.client.CreateManagedRunner(ctx, &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: &sandboxv1.ManagedRunner{
			Identity: &sandboxv1.RunnerIdentity{RunnerId: c.runner, Zone: "zone-a", ClusterId: h.cluster}, Policy: &sandboxv1.Policy{DisplayName: c.policy},
		}})
	case "get":
		runner, err = h.client.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: c.runner})
	case "update":
		runner, err = h.client.UpdateManagedRunner(ctx, &sandboxv1.UpdateManagedRunnerRequest{
			RunnerId: c.runner, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"policy"}},
			ManagedRunner: &sandboxv1.ManagedRunner{Etag: c.etag, Policy: &sandboxv1.Policy{DisplayName: c.policy}},
		})
	default:
		_, err = h.client.DeleteManagedRunner(ctx, &sandboxv1.DeleteManagedRunnerRequest{RunnerId: c.runner})
	}
	returned := time.Since(h.began)
	a := answer{
		policy: runner.GetPolicy().GetDisplayName(), etag: runner.GetEtag(),
		deleting: runner.GetInstallStatus() == sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_DELETING,
	}
	if err != nil {
		if a.reason = apierr.ReasonOf(err); a.reason == "" {
			t.Errorf("%+v: %v", c, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history = append(h.history, porcupine.Operation{ClientId: id, Input: c, Call: called.Nanoseconds(), Output: a, Return: returned.Nanoseconds()})
	return a
}

// The answers to requests that many send at the same time are as if they had
// been sent one after the other, on both databases.
func TestRequestsAboutRunnersAreLinearizable(t *testing.T) {
	t.Run("embedded database", func(t *testing.T) { checkHistory(t, "") })
	t.Run("PostgreSQL", func(t *testing.T) { checkHistory(t, postgrestest.Start(t).Database(t)) })
}

func checkHistory(t *testing.T, databaseURL string) {
	const clients, requests = 5, 60
	w := start(t, func(cfg *Config) { cfg.DatabaseURL = databaseURL })
	h := &historian{
		client:  sandboxv1connect.NewRunnerManagementServiceClient(w.client, w.URL(), connect.WithClientOptions(bearer(w.admin))),
		cluster: w.cluster.ClusterID,
		began:   time.Now(),
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var group sync.WaitGroup
	for id := range clients {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(id)))
			// Both compete for the one cluster.
			etags := map[string]string{"r-a": "none", "r-b": "none"}
			for i := range requests {
				c := call{
					method: []string{"create", "create", "get", "get", "update", "update", "update", "delete"}[random.IntN(8)],
					runner: []string{"r-a", "r-b"}[random.IntN(2)],
				}
				switch c.method {
				case "create":
					c.policy = fmt.Sprintf("%d-%d", id, i)
				case "update":
					c.policy, c.etag = fmt.Sprintf("%d-%d", id, i), etags[c.runner]
				}
				if a := h.send(t, id, c); a.etag != "" {
					etags[c.runner] = a.etag
				}
			}
		})
	}
	group.Wait()
	reasons := map[apierr.Reason]int{}
	for _, operation := range h.history {
		reasons[operation.Output.(answer).reason]++
	}
	t.Logf("answers by reason: %v", reasons)
	const patience = 2 * time.Minute
	if result := porcupine.CheckOperationsTimeout(clusterModel(), h.history, patience); result != porcupine.Ok {
		for _, operation := range h.history {
			t.Logf("%d: %d to %d: %+v -> %+v", operation.ClientId, operation.Call, operation.Return, operation.Input, operation.Output)
		}
		t.Errorf("the history is %s", result)
	}
}
