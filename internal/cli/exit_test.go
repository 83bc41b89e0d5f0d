package cli_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/cli"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/clitest"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

// sandbar carries out one command line against the server.
func sandbar(t *testing.T, server *clitest.Server, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	environment := map[string]string{client.SandboxEndpointVariable: server.URL, client.SandboxTokenVariable: clitest.Token}
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), &invocation.Invocation{
		IO:     iostreams.Buffers(strings.NewReader(""), &out, &errs),
		Now:    time.Now,
		Getenv: func(name string) string { return environment[name] },
	}, args)
	return code, out.String(), errs.String()
}

// killed is a command that ends as if its sandbox had ended around it.
var killed = []string{"sh", "-c", "kill -9 $$"}

func lifetimeOver(status *sandboxv1.SandboxStatus) {
	status.State = sandboxv1.State_STATE_TERMINATED
	status.StateReason = "its maximum lifetime of 5 s has passed"
	status.EffectiveMaxLifetimeSeconds = 5
	status.EndTime = timestamppb.New(status.GetCreateTime().AsTime().Add(5 * time.Second))
}

func outOfMemory(status *sandboxv1.SandboxStatus) {
	status.State = sandboxv1.State_STATE_FAILED
	status.StateReason = "OOM killed: the sandbox used more memory than its limit"
	status.ExitCode = proto.Int32(137)
}

func runnerDeleted(status *sandboxv1.SandboxStatus) {
	status.State, status.StateReason = sandboxv1.State_STATE_TERMINATED, "its runner is being deleted"
}

func deletedByOther(status *sandboxv1.SandboxStatus) {
	status.State, status.StateReason = sandboxv1.State_STATE_TERMINATED, "stopped at a caller's request"
}

func TestWhatEndsASandboxUnderACommandIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*sandboxv1.SandboxStatus)
		says    string
	}{
		"its lifetime": {
			lifetimeOver,
			"sandbar: sandbox sandbox-1 is TERMINATED: its maximum lifetime of 5 s has passed; allow it more time with --lifetime\n",
		},
		"want of memory": {
			outOfMemory,
			"sandbar: sandbox sandbox-1 is FAILED: OOM killed: the sandbox used more memory than its limit; if it ran out of memory, allow it more with --memory\n",
		},
		"the deletion of its runner": {
			runnerDeleted,
			"sandbar: sandbox sandbox-1 is TERMINATED: its runner is being deleted; run it again if it was not meant to end\n",
		},
		"its deletion by somebody else": {
			deletedByOther,
			"sandbar: sandbox sandbox-1 is TERMINATED: stopped at a caller's request; run it again if it was not meant to end\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := clitest.Start(t)
			server.Sandboxes.OnExec = func(init *sandboxv1.ExecStreamInit) error {
				server.Sandboxes.Change(init.GetSandboxId(), c.happens)
				return nil
			}
			code, _, stderr := sandbar(t, server, append([]string{"run", "busybox:1", "--"}, killed...)...)
			if code != 137 || stderr != c.says {
				t.Errorf("run ends with %d and says\n%q, want 137 and\n%q", code, stderr, c.says)
			}
		})
		t.Run(name+", with the command as main process", func(t *testing.T) {
			server := clitest.Start(t)
			server.Sandboxes.Logs = func(request *sandboxv1.StreamLogsRequest, _ func(*sandboxv1.LogEntry) error) error {
				server.Sandboxes.Change(request.GetSandboxId(), func(status *sandboxv1.SandboxStatus) {
					status.ExitCode = proto.Int32(137)
					c.happens(status)
				})
				return nil
			}
			code, _, stderr := sandbar(t, server, "run", "--main", "busybox:1", "--", "work")
			if code != 137 || stderr != c.says {
				t.Errorf("run --main ends with %d and says\n%q, want 137 and\n%q", code, stderr, c.says)
			}
		})
	}
}

func TestACommandThatIsKilledWhileItsSandboxGoesOnIsSaid(t *testing.T) {
	server := clitest.Start(t)
	code, _, stderr := sandbar(t, server, append([]string{"run", "busybox:1", "--"}, killed...)...)
	if code != 137 || !strings.Contains(stderr, "the command was killed (SIGKILL); sandbox sandbox-1 goes on") {
		t.Errorf("run ends with %d and says %q", code, stderr)
	}
}

func TestARunnerThatGoesAwayUnderACommandLeavesItsOutcomeUnknown(t *testing.T) {
	for _, args := range [][]string{
		{"run", "busybox:1", "--", "sleep", "600"},
		{"sandbox", "exec", "sandbox-1", "--", "sleep", "600"},
	} {
		t.Run(args[0], func(t *testing.T) {
			server := clitest.Start(t)
			if args[0] == "sandbox" {
				if code, _, stderr := sandbar(t, server, "sandbox", "create", "busybox:1"); code != 0 {
					t.Fatalf("create ends with %d: %s", code, stderr)
				}
			}
			server.Sandboxes.OnExec = func(*sandboxv1.ExecStreamInit) error {
				return apierr.New(apierr.RunnerUnavailable, "runner runner-1 is not connected")
			}
			code, _, stderr := sandbar(t, server, args...)
			const says = "error: the command was started, but how it ended is unknown: runner runner-1 is not connected\n  (CWSANDBOX_RUNNER_UNAVAILABLE)\n"
			if code != 125 || stderr != says {
				t.Errorf("%v ends with %d and says\n%q, want 125 and\n%q", args, code, stderr, says)
			}
		})
	}
}

func TestARunnerThatIsNotThereTakesNoCommand(t *testing.T) {
	server := clitest.Start(t)
	server.Sandboxes.Refuse = apierr.New(apierr.RunnerUnavailable, "runner runner-1 is not connected")
	if code, _, stderr := sandbar(t, server, "sandbox", "exec", "sandbox-1", "--", "true"); code != 7 {
		t.Errorf("exec ends with %d: %s; want 7, since nothing was run", code, stderr)
	}
	// run has created a sandbox by then: it cannot be sent again as it was.
	if code, _, stderr := sandbar(t, server, "run", "busybox:1", "--", "true"); code != 125 {
		t.Errorf("run ends with %d: %s; want 125, since the sandbox was created", code, stderr)
	}
}
