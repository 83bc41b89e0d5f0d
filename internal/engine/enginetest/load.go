package enginetest

import (
	"context"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sandbar-project/sandbar/internal/engine"
)

func testTwoEngines(t *testing.T, s *suite) {
	s.leavesNothing(t)
	other := s.newEngine(t)
	otherImage := s.pullImage(t, other.Engine)
	spec := s.spec()
	spec.Network = engine.Network{Egress: []engine.EgressRule{{Prefix: prefix(s.internet.site)}}}
	twin := spec
	twin.ImageDigest = otherImage.Digest
	twin.Hostname = "twin"

	here := s.create(t, spec)
	there := createIn(t, other.Engine, twin)
	wantEqual(t, "host name in the first", here.want(t, "whoami"), "box")
	wantEqual(t, "host name in the second", there.want(t, "whoami"), "twin")
	for _, box := range []*sandbox{here, there} {
		box.want(t, "connect", "tcp", at(s.internet.site, 80))
	}
	if err := other.Engine.Remove(t.Context(), twin.ID); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	if err := other.Engine.Uninstall(t.Context()); err != nil {
		t.Fatalf("Uninstall: %v", err)
	}
	here.want(t, "connect", "tcp", at(s.internet.site, 80))
}

// testLoad makes, uses and removes many sandboxes, several at a time.
func testLoad(t *testing.T, s *suite) {
	s.leavesNothing(t)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(s.Parallel)
	for i := range s.Sandboxes {
		spec := s.spec()
		if i%2 == 0 {
			spec.Network = engine.Network{DNS: true, Egress: []engine.EgressRule{{Prefix: prefix(s.internet.site)}}}
		}
		group.Go(func() error { return s.useOnce(ctx, t, spec) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func (s *suite) useOnce(ctx context.Context, t *testing.T, spec engine.Spec) error {
	if err := s.Engine.Create(ctx, spec); err != nil {
		return err
	}
	box := &sandbox{engine: s.Engine, id: spec.ID}
	if r, err := box.call(t, "true"); err != nil || !r.ok() {
		t.Errorf("%s: %+v, %v", spec.ID, r, err)
	}
	if len(spec.Network.Egress) > 0 {
		if r, err := box.call(t, "connect", "tcp", at(s.internet.site, 80)); err != nil || !r.ok() {
			t.Errorf("%s: %+v, %v", spec.ID, r, err)
		}
	}
	return s.Engine.Remove(context.WithoutCancel(ctx), spec.ID)
}
