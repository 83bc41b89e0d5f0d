package enginetest

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sandbar-project/sandbar/internal/engine"
)

func testLifecycle(t *testing.T, s *suite) {
	t.Run("a sandbox runs until its guest ends", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		wantEqual(t, "host name", box.want(t, "whoami"), "box")
		listed, _ := s.state(t, box.id)
		wantEqual(t, "state", listed.State, engine.StateRunning)
		wantEqual(t, "labels", listed.Labels, map[string]string{"owner": "suite"})
		usage, err := s.Engine.Usage(t.Context(), box.id)
		if err != nil || usage.Pids == 0 || usage.MemoryBytes == 0 || usage.CPUNanos == 0 {
			t.Errorf("Usage() = %+v, %v; want something of everything", usage, err)
		}

		var waits errgroup.Group
		for range 3 {
			waits.Go(func() error {
				exit, err := s.Engine.Wait(t.Context(), box.id)
				if err == nil && (exit.OOMKilled || exit.Time.IsZero()) {
					t.Errorf("Wait() = %+v", exit)
				}
				return err
			})
		}
		box.shutdown(t)
		if err := waits.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
		listed, _ = s.state(t, box.id)
		wantEqual(t, "state", listed.State, engine.StateExited)
		if _, err := s.Engine.Dial(t.Context(), box.id); !errors.Is(err, engine.ErrNotRunning) {
			t.Errorf("Dial() = %v; want ErrNotRunning", err)
		}
		if _, err := s.Engine.Usage(t.Context(), box.id); !errors.Is(err, engine.ErrNotRunning) {
			t.Errorf("Usage() = %v; want ErrNotRunning", err)
		}
	})
	t.Run("remove ends a running sandbox and wakes who waits for it", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		var wait errgroup.Group
		begun := make(chan struct{})
		wait.Go(func() error {
			close(begun)
			_, err := s.Engine.Wait(t.Context(), box.id)
			if errors.Is(err, engine.ErrNotFound) {
				return nil // Removed before the wait began.
			}
			return err
		})
		<-begun
		if err := s.Engine.Remove(t.Context(), box.id); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if err := wait.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
	})
	t.Run("a wait ends with its context", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Engine.Wait(ctx, box.id); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait() = %v; want context.Canceled", err)
		}
	})
	t.Run("a new process finds what an earlier one made", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		successor := s.Reopen(t)
		adopted := &sandbox{engine: successor, id: box.id}
		wantEqual(t, "host name", adopted.want(t, "whoami"), "box")
		var wait errgroup.Group
		wait.Go(func() error {
			_, err := successor.Wait(t.Context(), box.id)
			return err
		})
		adopted.shutdown(t)
		if err := wait.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
		if err := successor.Remove(t.Context(), box.id); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
	t.Run("what does not exist", func(t *testing.T) {
		const id = "sandbox-none"
		if err := s.Engine.Remove(t.Context(), id); err != nil {
			t.Errorf("Remove() = %v; want success", err)
		}
		if _, err := s.Engine.Dial(t.Context(), id); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("Dial() = %v; want ErrNotFound", err)
		}
		if _, err := s.Engine.Wait(t.Context(), id); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("Wait() = %v; want ErrNotFound", err)
		}
		if _, err := s.Engine.Usage(t.Context(), id); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("Usage() = %v; want ErrNotFound", err)
		}
	})
	t.Run("removing one sandbox many times at once", func(t *testing.T) {
		s.leavesNothing(t)
		box := s.create(t, s.spec())
		var removals errgroup.Group
		for range 8 {
			removals.Go(func() error { return s.Engine.Remove(t.Context(), box.id) })
		}
		if err := removals.Wait(); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
}

func testCreate(t *testing.T, s *suite) {
	t.Run("an id is taken once", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		box := s.create(t, spec)
		if err := s.Engine.Create(t.Context(), spec); !errors.Is(err, engine.ErrExists) {
			t.Errorf("Create() = %v; want ErrExists", err)
		}
		box.want(t, "true")
	})
	t.Run("an image that is not here", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.ImageDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
		if err := s.Engine.Create(t.Context(), spec); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("Create() = %v; want ErrNotFound", err)
		}
	})
	for name, spoil := range map[string]func(*engine.Spec){
		"an id with a path":       func(s *engine.Spec) { s.ID = "../escape" },
		"an empty id":             func(s *engine.Spec) { s.ID = "" },
		"a host name with spaces": func(s *engine.Spec) { s.Hostname = "a b" },
		"a negative limit":        func(s *engine.Spec) { s.Resources.PidsLimit = -1 },
		"an unknown capability":   func(s *engine.Spec) { s.Security.CapabilitiesAdd = []string{"FLY"} },
		"a rule to nowhere":       func(s *engine.Spec) { s.Network.Egress = []engine.EgressRule{{}} },
		"an unknown protocol": func(s *engine.Spec) {
			s.Network.Egress = []engine.EgressRule{{Any: true, Ports: []engine.PortRange{{Protocol: "ICMP", First: 1, Last: 2}}}}
		},
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			s.leavesNothing(t)
			spec := s.spec()
			spoil(&spec)
			if err := s.Engine.Create(t.Context(), spec); err == nil {
				t.Error("Create succeeded")
			}
		})
	}
	t.Run("a cancelled create leaves nothing", func(t *testing.T) {
		s.leavesNothing(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Engine.Create(ctx, s.spec()); !errors.Is(err, context.Canceled) {
			t.Errorf("Create() = %v; want context.Canceled", err)
		}
	})
	t.Run("the image stays as it is", func(t *testing.T) {
		s.leavesNothing(t)
		first := s.create(t, s.spec())
		first.want(t, "write", "/etc/os-release")
		second := s.create(t, s.spec())
		wantEqual(t, "the file in another sandbox", second.want(t, "read", "/etc/os-release"), "ID=suite")
	})
}
