package enginetest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Instance is an engine under test.
type Instance struct {
	Engine engine.Engine
	// Marks are strings that occur in the names of whatever the engine makes
	// and in the names of nothing else; see TakeSnapshot.
	Marks []string
	// Reopen makes another engine of the same configuration and data, as a new
	// process would.
	Reopen func(t *testing.T) engine.Engine
}

// Setup is what the suite asks of an engine.
type Setup struct {
	// Resolvers answer DNS in the suite's internet.
	Resolvers []netip.Addr
}

// Options say what to expect of an engine.
type Options struct {
	// UserspaceKernel: sandboxes have a kernel of their own, which ends as a
	// whole when memory runs out, and shows no seccomp filter.
	UserspaceKernel bool
	// Sandboxes and Parallel size the load test. Defaults 100 and 16.
	Sandboxes, Parallel int
}

// BuildGuest builds the suite's guest into a directory and returns its path.
func BuildGuest(dir string) (string, error) {
	path := filepath.Join(dir, "guest")
	build := exec.Command("go", "build", "-o", path, "github.com/sandbar-project/sandbar/internal/engine/enginetest/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the guest: %w: %s", err, output)
	}
	return path, nil
}

// Run runs the suite. newEngine makes an engine, with nothing in it, whose
// guest is the suite's own; it cleans up after itself.
func Run(t *testing.T, newEngine func(t *testing.T, setup Setup) Instance, options Options) {
	if options.Sandboxes == 0 {
		options.Sandboxes = 100
	}
	if options.Parallel == 0 {
		options.Parallel = 16
	}
	net := newInternet(t)
	setup := Setup{Resolvers: []netip.Addr{net.resolver}}
	s := &suite{Options: options, internet: net, newEngine: func(t *testing.T) Instance { return newEngine(t, setup) }}
	s.Instance = s.newEngine(t)
	s.image = s.pullImage(t, s.Engine)
	s.prepare(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"Lifecycle", testLifecycle},
		{"Create", testCreate},
		{"Limits", testLimits},
		{"Disk", testDisk},
		{"Isolation", testIsolation},
		{"ControlChannel", testControlChannel},
		{"Network", testNetwork},
		{"TwoEngines", testTwoEngines},
		{"Load", testLoad},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
	t.Run("Uninstall", func(t *testing.T) { testUninstall(t, s) })
}

// prepare makes the engine set up what it keeps between sandboxes, so that the
// tests see only what a sandbox leaves.
func (s *suite) prepare(t *testing.T) {
	t.Helper()
	spec := s.spec()
	spec.Network = engine.Network{DNS: true, Egress: []engine.EgressRule{{Any: true}}}
	if err := s.Engine.Create(t.Context(), spec); err != nil {
		t.Fatalf("Create(%s): %v", spec.ID, err)
	}
	if err := s.Engine.Remove(t.Context(), spec.ID); err != nil {
		t.Fatalf("Remove(%s): %v", spec.ID, err)
	}
}

type suite struct {
	Options
	Instance
	internet  *internet
	newEngine func(t *testing.T) Instance
	image     engine.Image
	lastID    atomic.Int64
}

// nextID returns ids of one length.
func (s *suite) nextID() string { return fmt.Sprintf("sandbox-%06d", s.lastID.Add(1)) }

func (s *suite) spec() engine.Spec {
	return engine.Spec{ID: s.nextID(), ImageDigest: s.image.Digest, Hostname: "box", Labels: map[string]string{"owner": "suite"}}
}

// create makes a sandbox that the end of the test removes.
func (s *suite) create(t *testing.T, spec engine.Spec) *sandbox {
	t.Helper()
	return createIn(t, s.Engine, spec)
}

func createIn(t *testing.T, e engine.Engine, spec engine.Spec) *sandbox {
	t.Helper()
	if err := e.Create(t.Context(), spec); err != nil {
		t.Fatalf("Create(%s): %v", spec.ID, err)
	}
	t.Cleanup(func() {
		if err := e.Remove(context.WithoutCancel(t.Context()), spec.ID); err != nil {
			t.Errorf("Remove(%s): %v", spec.ID, err)
		}
	})
	return &sandbox{engine: e, id: spec.ID}
}

// leavesNothing checks at the end of the test that the engine has left nothing
// behind. Call it before anything that cleans up.
func (s *suite) leavesNothing(t *testing.T) {
	t.Helper()
	before, err := TakeSnapshot(s.Marks...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := Leftovers(before, s.Marks...)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		sandboxes, err := s.Engine.List(context.WithoutCancel(t.Context()))
		if err != nil || len(sandboxes) > 0 {
			t.Errorf("List() = %v, %v; want nothing", sandboxes, err)
		}
	})
}

func (s *suite) state(t *testing.T, id string) (engine.Sandbox, bool) {
	t.Helper()
	sandboxes, err := s.Engine.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for _, sandbox := range sandboxes {
		if sandbox.ID == id {
			return sandbox, true
		}
	}
	return engine.Sandbox{}, false
}

func wantEqual[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// testUninstall comes last: the base state, table and parent cgroups go too.
func testUninstall(t *testing.T, s *suite) {
	box := s.create(t, s.spec())
	if err := s.Engine.Uninstall(t.Context()); err == nil {
		t.Error("Uninstall succeeded while a sandbox was left")
	}
	if err := s.Engine.Remove(t.Context(), box.id); err != nil {
		t.Fatal(err)
	}
	if err := s.Engine.Uninstall(t.Context()); err != nil {
		t.Fatalf("Uninstall: %v", err)
	}
	left, err := Leftovers(nil, s.Marks...)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if err := s.Engine.Uninstall(t.Context()); err != nil {
		t.Errorf("Uninstall once more: %v", err)
	}
}
