package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// policyCache is the policy that was pushed last. It is on disk before a push
// is answered, so that a runner that restarts without its gateway enforces
// the same. Safe for concurrent use.
type policyCache struct {
	path string

	mu       sync.Mutex
	pushed   *runnerv1.SetPolicyRequest
	compiled *policy.Compiled
}

func openPolicyCache(path string) (*policyCache, error) {
	cache := &policyCache{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return cache, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the kept policy: %w", err)
	}
	pushed := &runnerv1.SetPolicyRequest{}
	if err := proto.Unmarshal(data, pushed); err != nil {
		return nil, fmt.Errorf("read the kept policy %s: %w", path, err)
	}
	if cache.compiled, err = compile(pushed); err != nil {
		return nil, fmt.Errorf("read the kept policy %s: %w", path, err)
	}
	cache.pushed = pushed
	return cache, nil
}

// compile answers nil for a runner without a policy.
func compile(pushed *runnerv1.SetPolicyRequest) (*policy.Compiled, error) {
	if pushed.GetPolicy() == nil {
		return nil, nil
	}
	return policy.Compile(pushed.GetPolicy())
}

// set replaces the policy. One that cannot be enforced is refused, and the
// one before stays.
func (c *policyCache) set(pushed *runnerv1.SetPolicyRequest) error {
	data, err := proto.Marshal(pushed)
	if err != nil {
		return fmt.Errorf("keep the policy: %w", err)
	}
	compiled, err := compile(pushed)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if proto.Equal(pushed, c.pushed) {
		// It is pushed at every connection, and the disk may be full by now.
		return nil
	}
	if err := writeDurably(c.path, data); err != nil {
		return fmt.Errorf("keep the policy: %w", err)
	}
	c.pushed, c.compiled = pushed, compiled
	return nil
}

func (c *policyCache) etag() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pushed.GetEtag()
}

// resolve holds a sandbox against the policy and says when to ask registries.
func (c *policyCache) resolve(spec *sandboxv1.SandboxSpec) (policy.Resolved, engine.PullPolicy, error) {
	c.mu.Lock()
	pushed, compiled := c.pushed, c.compiled
	c.mu.Unlock()
	resolved, err := policy.Resolve(policy.Request{
		Spec:                  spec,
		Policy:                pushed.GetPolicy(),
		Compiled:              compiled,
		EnforceResourceLimits: pushed.GetEnforceResourceLimits(),
	})
	pull := engine.PullIfNotPresent
	if pushed.GetImagePullPolicy() == sandboxv1.SandboxImagePullPolicy_SANDBOX_IMAGE_PULL_POLICY_ALWAYS {
		pull = engine.PullAlways
	}
	return resolved, pull, err
}
