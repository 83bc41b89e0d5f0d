package fleet_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/install"
)

// clusterFake is a cluster: what is installed on it, and how that fares.
type clusterFake struct {
	mu sync.Mutex
	// tokens by revision are what is installed.
	tokens map[int32]string
	// failing revisions do not come up.
	failing map[int32]*sandboxv1.InstallError
	// unreachable: every call fails.
	unreachable bool
	uninstalls  int
}

var errUnreachable = errors.New("no route to the cluster")

func (c *clusterFake) do(fn func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unreachable {
		return errUnreachable
	}
	return fn()
}

func (c *clusterFake) Ensure(_ context.Context, target install.Target) error {
	return c.do(func() error { c.tokens[target.Revision] = target.EnrollmentToken; return nil })
}

func (c *clusterFake) Observe(_ context.Context, _, _ string, revision int32) (seen install.Observation, err error) {
	err = c.do(func() error {
		if failure := c.failing[revision]; failure != nil {
			seen = install.Observation{Phase: install.PhaseFailed, Error: failure}
		} else if _, there := c.tokens[revision]; there {
			seen.Phase = install.PhaseRunning
		}
		return nil
	})
	return seen, err
}

func (c *clusterFake) Revisions(context.Context, string, string) (revisions []int32, err error) {
	err = c.do(func() error {
		for revision := range c.tokens {
			revisions = append(revisions, revision)
		}
		slices.Sort(revisions)
		return nil
	})
	return revisions, err
}

func (c *clusterFake) Retire(_ context.Context, _, _ string, revision int32) error {
	return c.do(func() error { delete(c.tokens, revision); return nil })
}

func (c *clusterFake) Uninstall(context.Context, string, string) error {
	return c.do(func() error { clear(c.tokens); c.uninstalls++; return nil })
}

func (c *clusterFake) change(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}

// gatewayFake remembers what it was asked.
type gatewayFake struct {
	mu      sync.Mutex
	pushed  []string
	drained int
}

func (g *gatewayFake) PushPolicy(_ context.Context, _ gateway.RunnerKey, policy gateway.PolicySnapshot) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pushed = append(g.pushed, policy.ETag)
	return nil
}

func (g *gatewayFake) DrainRunner(context.Context, gateway.RunnerKey, time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drained++
	return nil
}
