package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/lifecycle"
)

const (
	sandboxCount = 100
	atATime      = 16
	kills        = 20
)

// busyboxSpec asks for so little that a hundred fit the smallest machine, and
// may use more, since a start takes a tenth of a second of CPU in gVisor.
func busyboxSpec() *sandboxv1.SandboxSpec {
	return &sandboxv1.SandboxSpec{Containers: []*sandboxv1.Container{{
		Name: "main", Image: "busybox:1", Command: "/bin/sh", Args: []string{"-c", `trap "exit 0" TERM INT; sleep infinity & wait`},
		ResourceRequirements: &sandboxv1.ResourceRequirements{
			Requests: &sandboxv1.Resources{Cpu: "10m", Memory: "64Mi"},
			Limits:   &sandboxv1.Resources{Cpu: "1", Memory: "128Mi"},
		},
	}}}
}

// TestAHundredSandboxesSixteenAtATime: each is created, used and deleted; none
// fails and nothing is left.
func TestAHundredSandboxesSixteenAtATime(t *testing.T) {
	s := start(t)
	c := s.client()
	workers, ctx := errgroup.WithContext(t.Context())
	workers.SetLimit(atATime)
	for n := range sandboxCount {
		workers.Go(func() error { return useAndDelete(ctx, c, fmt.Sprintf("hello %d", n)) })
	}
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
	s.interrupt()
	s.nothingLeft()
}

func useAndDelete(ctx context.Context, c *client.Client, greeting string) error {
	sandboxes := lifecycle.Sandboxes{API: c.Sandboxes, Wait: attach.Sleep}
	sandbox, err := sandboxes.Create(ctx, busyboxSpec())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if _, err = sandboxes.Running(ctx, sandbox, nil); err != nil {
		return fmt.Errorf("wait for %s: %w", sandbox.GetSandboxId(), err)
	}
	if err := greet(ctx, c, sandbox.GetSandboxId(), greeting); err != nil {
		return err
	}
	return sandboxes.Remove(ctx, sandbox.GetSandboxId(), 5)
}

func greet(ctx context.Context, c *client.Client, id, greeting string) error {
	var out, complaints strings.Builder
	code, err := attach.Exec(ctx, c.Sandboxes, iostreams.Buffers(nil, &out, &complaints), attach.ExecOptions{
		SandboxID: id, Command: []string{"echo", greeting},
	})
	if err != nil || code != 0 || out.String() != greeting+"\n" {
		return fmt.Errorf("exec in %s: code %d, output %q %q: %w", id, code, out.String(), complaints.String(), err)
	}
	return nil
}

// TestKilledAtAnyTimeNothingIsLost: server and runner are killed in turn in the
// middle of a hundred sandboxes. Afterwards each one that was accepted is usable
// or reported as ended, and nothing else is there.
func TestKilledAtAnyTimeNothingIsLost(t *testing.T) {
	// The kills hit our processes, not the runtime's; with runc, which starts
	// five times as fast, the same kills take minutes less.
	if _, err := exec.LookPath("runc"); err == nil && os.Getenv("SANDBAR_RUNTIME") == "" {
		t.Setenv("SANDBAR_RUNTIME", "runc")
	}
	s := start(t, "--keep")
	c := s.client()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	var mu sync.Mutex
	accepted := map[string]bool{}
	var served int
	workers, workCtx := errgroup.WithContext(ctx)
	workers.SetLimit(atATime)
	// The kills below need Go to hand out work meanwhile.
	handedOut := make(chan struct{})
	go func() {
		defer close(handedOut)
		for range sandboxCount {
			workers.Go(func() error {
				sandbox, err := createThroughCrashes(workCtx, c)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				accepted[sandbox.GetSandboxId()] = true
				return nil
			})
		}
	}()
	for round := range kills {
		eventually(t, "sandboxes are being created", func() error {
			mu.Lock()
			defer mu.Unlock()
			if wanted := round * sandboxCount / kills; len(accepted) < wanted {
				return fmt.Errorf("%d of %d are accepted", len(accepted), wanted)
			}
			return nil
		})
		s.killRunner()
		s.crash()
		s.startDev("--keep")
	}
	s.awaitRunner()
	<-handedOut
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(accepted) != sandboxCount {
		t.Errorf("%d different sandboxes were made for %d requests", len(accepted), sandboxCount)
	}
	c = s.client()
	sandboxes := lifecycle.Sandboxes{API: c.Sandboxes, Wait: attach.Sleep}
	for id := range accepted {
		eventually(t, id+" is usable or reported gone", func() error {
			sandbox, err := c.Sandboxes.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
			if connect.CodeOf(err) == connect.CodeNotFound {
				t.Errorf("%s was accepted and is forgotten", id)
				return nil
			}
			if err != nil || lifecycle.Ended(sandbox.GetStatus().GetState()) {
				return err
			}
			if err := greet(ctx, c, id, "still here"); err != nil {
				return err
			}
			served++
			return sandboxes.Remove(ctx, id, 1)
		})
	}
	t.Logf("%d sandboxes were accepted, %d were usable after the last kill", len(accepted), served)
	s.interrupt()
	s.startDev()
	s.interrupt()
	s.nothingLeft()
}

// createThroughCrashes asks for one sandbox until it is accepted, under one
// request id, as a client does that does not give up.
func createThroughCrashes(ctx context.Context, c *client.Client) (*sandboxv1.Sandbox, error) {
	request := &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: busyboxSpec()}, RequestId: uuid.NewString()}
	for {
		sandbox, err := c.Sandboxes.CreateSandbox(ctx, request)
		if err == nil {
			return sandbox, nil
		}
		if e := attach.Sleep(ctx, 100*time.Millisecond); e != nil {
			return nil, fmt.Errorf("the last answer was %w: %w", err, e)
		}
	}
}
