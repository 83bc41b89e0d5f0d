package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
)

const runnerVariable = "SANDBAR_TEST_RUNNER"

// runnerProcess is what a runner in a process of its own is told.
type runnerProcess struct {
	ServerURL string
	Dir       string
	OCI       *ociMachine
}

// runnerMain is a runner to be killed.
func runnerMain(text string) int {
	var p runnerProcess
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	b := &bench{dir: p.Dir, machine: newFakeEngine(filepath.Join(p.Dir, "engine"))}
	if p.OCI != nil {
		opened, err := p.OCI.open(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		b.machine = opened
	}
	config := b.configFor(p.ServerURL, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err := Run(context.Background(), config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process starts a runner in a process of its own, and answers with what
// kills it.
func (b *bench) process() (runnerv1connect.RunnerServiceClient, func()) {
	b.t.Helper()
	text, err := json.Marshal(runnerProcess{ServerURL: b.gateway.server.URL, Dir: b.dir, OCI: b.oci})
	if err != nil {
		b.t.Fatal(err)
	}
	command := exec.CommandContext(b.t.Context(), os.Args[0])
	command.Env = append(os.Environ(), runnerVariable+"="+string(text))
	command.Stderr = testWriter{b.t}
	// The guests keep no descriptor of the pipe open, but they need not be
	// waited for if one did.
	command.WaitDelay = time.Second
	if err := command.Start(); err != nil {
		b.t.Fatal(err)
	}
	var once sync.Once
	kill := func() {
		once.Do(func() {
			_ = command.Process.Signal(unix.SIGKILL)
			_ = command.Wait()
		})
	}
	b.t.Cleanup(kill)
	client := b.gateway.client(b.t)
	if _, err := client.SetPolicy(b.ctx(), &runnerv1.SetPolicyRequest{Policy: &sandboxv1.Policy{}, Etag: "e1"}); err != nil {
		b.t.Fatal(err)
	}
	return client, kill
}

// killGuest ends a sandbox's PID 1 as the kernel might.
func (b *bench) killGuest(id string) {
	b.t.Helper()
	pidfd, err := b.engine.guestProcess(id)
	if err != nil {
		b.t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		b.t.Fatal(err)
	}
}

// A runner that is killed at any instant of creating and deleting leaves
// nothing that the next one does not find: every sandbox is usable or ended,
// and the engine has exactly those that are usable.
func TestKilledRunnerLosesAndLeaksNothing(t *testing.T) {
	b := newBench(t)
	const rounds, within = 6, 300 * time.Millisecond
	b.killAgainAndAgain(rounds, within)
}

func (b *bench) killAgainAndAgain(rounds int, within time.Duration) {
	const sandboxes = 6
	random := rand.New(rand.NewPCG(1, 2))
	next := 0
	for round := range rounds {
		client, kill := b.process()
		b.synced(client)
		var busy sync.WaitGroup
		ctx, cancel := context.WithCancel(b.ctx())
		for range sandboxes {
			next++
			n, deletes := next, random.IntN(2) == 0
			busy.Go(func() {
				if _, err := client.CreateSandbox(ctx, b.request(n, shell("echo up; sleep 1000"))); err == nil && deletes {
					_, _ = client.DeleteSandbox(ctx, &runnerv1.DeleteSandboxRequest{SandboxId: newID(n)})
				}
			})
		}
		time.Sleep(time.Duration(random.Int64N(int64(within))))
		kill()
		cancel()
		busy.Wait()
		b.checkTruth(round)
	}
}

// checkTruth starts a runner in this process and holds what it says against
// the engine.
func (b *bench) checkTruth(round int) {
	b.t.Helper()
	client, stop := b.start()
	defer stop()
	live := 0
	for id := range b.synced(client) {
		status := b.await(client, id, func(status *sandboxv1.SandboxStatus) bool {
			return status.GetState() == sandboxv1.State_STATE_RUNNING || ended(status)
		})
		if ended(status) {
			continue
		}
		live++
		if got := b.run(client, id, "echo", "usable"); got.Stdout != "usable\n" {
			b.t.Errorf("round %d: %s answers %+v", round, id, got)
		}
		b.delete(client, id, 0)
	}
	b.t.Logf("round %d: %d sandboxes were usable", round, live)
	b.nothingLeft()
}

func TestAdoptedSandboxKeepsItsOutput(t *testing.T) {
	b := newBench(t)
	client, kill := b.process()
	b.synced(client)
	gate := filepath.Join(b.dir, "gate")
	id := b.mustRun(client, 1, shell("echo before; while [ ! -e "+gate+" ]; do sleep 0.05; done; echo while; sleep 1000"))
	b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true}, "before\n")
	kill()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	client, _ = b.start()
	b.synced(client)
	if got, _ := b.logs(client, &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true}, "while\n"); got != "before\nwhile\n" {
		t.Errorf("got %q", got)
	}
}

func TestEndOfAnUnwatchedSandboxIsFoundOut(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		end     func(b *bench, id string)
		state   sandboxv1.State
	}{
		"the main process ended": {
			command: "while [ ! -e $GATE ]; do sleep 0.05; done; exit 4",
			end: func(b *bench, _ string) {
				if err := os.WriteFile(filepath.Join(b.dir, "gate"), nil, 0o600); err != nil {
					b.t.Fatal(err)
				}
			},
			state: sandboxv1.State_STATE_COMPLETED,
		},
		"the guest is gone": {
			command: "sleep 1000",
			end:     func(b *bench, id string) { b.killGuest(id) },
			state:   sandboxv1.State_STATE_FAILED,
		},
		"nothing is left": {
			command: "sleep 1000",
			end: func(b *bench, id string) {
				if err := b.engine.Remove(b.ctx(), id); err != nil {
					b.t.Fatal(err)
				}
			},
			state: sandboxv1.State_STATE_FAILED,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			client, stop := b.serve()
			spec := shell(tc.command)
			spec.Containers[0].EnvironmentVariables = map[string]string{"GATE": filepath.Join(b.dir, "gate")}
			id := b.mustRun(client, 1, spec)
			stop()
			tc.end(b, id)
			client, _ = b.start()
			if status := b.await(client, id, ended); status.GetState() != tc.state || (tc.state == sandboxv1.State_STATE_COMPLETED && status.GetExitCode() != 4) {
				t.Errorf("ended as %v", status)
			}
			b.delete(client, id, 0)
			b.nothingLeft()
		})
	}
}

func TestSandboxWithoutARecordIsRemoved(t *testing.T) {
	b := newBench(t)
	client, stop := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	stop()
	if err := os.RemoveAll(filepath.Join(b.dir, "state", "sandboxes", id)); err != nil {
		t.Fatal(err)
	}
	_, stop = b.serve()
	stop()
	b.nothingLeft()
}
