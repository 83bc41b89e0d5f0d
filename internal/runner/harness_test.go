package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/engine"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(guestSocketVariable); socket != "" {
		os.Exit(guestMain(socket))
	}
	if config := os.Getenv(runnerVariable); config != "" {
		os.Exit(runnerMain(config))
	}
	goleak.VerifyTestMain(m)
}

// bench is a gateway and a machine for runners.
type bench struct {
	t   *testing.T
	dir string
	// machine is engine, or a real one.
	machine engine.Engine
	engine  *fakeEngine
	// oci is what a process needs to open the machine's engine; nil: the fake.
	oci     *ociMachine
	gateway *fakeGateway
	limits  Limits
	// image is what shell runs in.
	image string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make process namespaces")
	}
	// Not t.TempDir: the path of a socket is at most 107 bytes.
	dir, err := os.MkdirTemp("", "runner")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, engine: newFakeEngine(filepath.Join(dir, "engine"))}
	b.machine, b.image = b.engine, "busybox:1"
	if err := os.Mkdir(b.engine.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.removeAll)
	b.gateway = newFakeGateway(t)
	return b
}

func (b *bench) removeAll() {
	found, err := b.machine.List(context.Background())
	if err != nil {
		b.t.Error(err)
	}
	for _, sandbox := range found {
		if err := b.machine.Remove(context.Background(), sandbox.ID); err != nil {
			b.t.Error(err)
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		b.t.Error(err)
	}
}

func (b *bench) config() Config {
	return b.configFor(b.gateway.server.URL,
		slog.New(slog.NewTextHandler(testWriter{b.t}, &slog.HandlerOptions{Level: slog.LevelInfo})))
}

func (b *bench) configFor(serverURL string, logger *slog.Logger) Config {
	return Config{
		ServerURL:           serverURL,
		EnrollmentTokenFile: filepath.Join(b.dir, "token"),
		CredentialFile:      filepath.Join(b.dir, "credential"),
		StateDirectory:      filepath.Join(b.dir, "state"),
		Engine:              b.machine,
		Version:             "1.2.3",
		Limits:              b.limits,
		Logger:              logger,
	}
}

// testWriter shows a log with the test it belongs to.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// start runs a runner and answers with its connection and what ends it.
func (b *bench) start() (runnerv1connect.RunnerServiceClient, func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, b.config()); err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			running.Wait()
		})
	}
	b.t.Cleanup(stop)
	return b.gateway.client(b.t), stop
}

// serve starts a runner with an empty policy, which allows everything.
func (b *bench) serve() (runnerv1connect.RunnerServiceClient, func()) {
	b.t.Helper()
	client, stop := b.start()
	if _, err := client.SetPolicy(b.ctx(), &runnerv1.SetPolicyRequest{Policy: &sandboxv1.Policy{}, Etag: "e1"}); err != nil {
		b.t.Fatal(err)
	}
	b.synced(client)
	return client, stop
}

func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

// synced waits until the runner serves, and answers with what it has.
func (b *bench) synced(client runnerv1connect.RunnerServiceClient) map[string]*runnerv1.SandboxRecord {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx())
	defer cancel()
	stream, err := client.WatchSandboxes(ctx, &runnerv1.WatchSandboxesRequest{})
	if err != nil {
		b.t.Fatal(err)
	}
	defer stream.Close()
	all := map[string]*runnerv1.SandboxRecord{}
	for stream.Receive() {
		if stream.Msg().GetInSync() {
			return all
		}
		all[stream.Msg().GetSandbox().GetSandboxId()] = stream.Msg().GetSandbox()
	}
	b.t.Fatalf("the watch ended: %v", stream.Err())
	return nil
}

// await watches a sandbox until it is as wanted.
func (b *bench) await(client runnerv1connect.RunnerServiceClient, id string, wanted func(*sandboxv1.SandboxStatus) bool) *sandboxv1.SandboxStatus {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx())
	defer cancel()
	stream, err := client.WatchSandboxes(ctx, &runnerv1.WatchSandboxesRequest{})
	if err != nil {
		b.t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if sandbox := stream.Msg().GetSandbox(); sandbox.GetSandboxId() == id && wanted(sandbox.GetStatus()) {
			return sandbox.GetStatus()
		}
	}
	b.t.Fatalf("sandbox %s did not become what was wanted: %v", id, stream.Err())
	return nil
}

func ended(status *sandboxv1.SandboxStatus) bool { return terminal(status.GetState()) }

// shell is a spec whose main process is a shell command.
func shell(command string) *sandboxv1.SandboxSpec {
	return &sandboxv1.SandboxSpec{Containers: []*sandboxv1.Container{{
		Name: "main", Command: "/bin/sh", Args: []string{"-c", command},
		ResourceRequirements: &sandboxv1.ResourceRequirements{
			Requests: &sandboxv1.Resources{Cpu: "100m", Memory: "64Mi"},
			Limits:   &sandboxv1.Resources{Cpu: "100m", Memory: "64Mi"},
		},
	}}}
}

func newID(n int) string { return fmt.Sprintf("sandbox-%08d", n) }

func (b *bench) request(n int, spec *sandboxv1.SandboxSpec) *runnerv1.CreateSandboxRequest {
	if spec.Containers[0].Image == "" {
		spec.Containers[0].Image = b.image
	}
	return &runnerv1.CreateSandboxRequest{
		SandboxId: newID(n), OrganizationId: "org-1", UserId: "user-1", Spec: spec, CreateTime: timestamppb.Now(),
	}
}

func (b *bench) create(client runnerv1connect.RunnerServiceClient, n int, spec *sandboxv1.SandboxSpec) *sandboxv1.SandboxStatus {
	b.t.Helper()
	response, err := client.CreateSandbox(b.ctx(), b.request(n, spec))
	if err != nil {
		b.t.Fatal(err)
	}
	return response.GetSandbox().GetStatus()
}

func (b *bench) mustRun(client runnerv1connect.RunnerServiceClient, n int, spec *sandboxv1.SandboxSpec) string {
	b.t.Helper()
	if status := b.create(client, n, spec); status.GetState() != sandboxv1.State_STATE_RUNNING {
		b.t.Fatalf("the sandbox is %s: %s", status.GetState(), status.GetStateReason())
	}
	return newID(n)
}

func (b *bench) delete(client runnerv1connect.RunnerServiceClient, id string, grace int32) *sandboxv1.SandboxStatus {
	b.t.Helper()
	response, err := client.DeleteSandbox(b.ctx(), &runnerv1.DeleteSandboxRequest{SandboxId: id, GracePeriodSeconds: grace})
	if err != nil {
		b.t.Fatal(err)
	}
	return response.GetSandbox().GetStatus()
}

// nothingLeft checks the engine.
func (b *bench) nothingLeft() {
	b.t.Helper()
	found, err := b.machine.List(b.ctx())
	if err != nil || len(found) != 0 {
		b.t.Errorf("the engine has %v, %v; want nothing", found, err)
	}
}
