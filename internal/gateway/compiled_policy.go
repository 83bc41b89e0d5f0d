package gateway

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// compiledPolicy is a runner's policy made ready, kept until its etag changes.
type compiledPolicy struct {
	etag     string
	compiled *policy.Compiled
}

// compile makes a policy ready to hold sandboxes against. A policy without an
// etag is compiled each time.
func (r *runner) compile(snapshot PolicySnapshot) (*policy.Compiled, error) {
	if kept := r.policy.Load(); kept != nil && kept.etag == snapshot.ETag && snapshot.ETag != "" {
		return kept.compiled, nil
	}
	compiled, err := policy.Compile(snapshot.Policy)
	if err != nil {
		return nil, err
	}
	r.policy.Store(&compiledPolicy{etag: snapshot.ETag, compiled: compiled})
	return compiled, nil
}

// resolve holds a sandbox against the policy of a runner that has one.
func (g *Gateway) resolve(spec *sandboxv1.SandboxSpec, on Runner) (policy.Resolved, error) {
	compiled, err := g.registry.runner(on.RunnerKey).compile(on.Policy)
	if err != nil {
		return policy.Resolved{}, err
	}
	return policy.Resolve(policy.Request{
		Spec: spec, Compiled: compiled, EnforceResourceLimits: on.Policy.EnforceResourceLimits,
	})
}
