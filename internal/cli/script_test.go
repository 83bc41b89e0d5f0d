package cli_test

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli"
	"github.com/sandbar-project/sandbar/internal/cli/clitest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sandbar": func() { os.Exit(cli.Main()) },
	})
}

// TestScripts runs the command lines in testdata/script, each against a server
// of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			server := clitest.Start(scriptT{env})
			server.Runners.Add(publishedRunner())
			server.Sandboxes.Logs = func(_ *sandboxv1.StreamLogsRequest, send func(*sandboxv1.LogEntry) error) error {
				return send(&sandboxv1.LogEntry{Data: []byte("a line of the main process\n")})
			}
			env.Values[serverKey{}] = server
			env.Setenv("SERVER", server.URL)
			env.Setenv("CWSANDBOX_BASE_URL", server.URL)
			env.Setenv("CWSANDBOX_API_KEY", clitest.Token)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// nothing-left fails when a sandbox still lives.
			"nothing-left": func(ts *testscript.TestScript, _ bool, _ []string) {
				server := ts.Value(serverKey{}).(*clitest.Server)
				if live := server.Sandboxes.Live(); len(live) > 0 {
					ts.Fatalf("sandboxes are left: %v", live)
				}
			},
		},
	})
}

type serverKey struct{}

// scriptT makes a script's environment a clitest.T.
type scriptT struct{ env *testscript.Env }

func (t scriptT) Helper()                                {}
func (t scriptT) Cleanup(f func())                       { t.env.Defer(f) }
func (t scriptT) Errorf(format string, arguments ...any) { t.Fatalf(format, arguments...) }
func (t scriptT) Fatalf(format string, arguments ...any) {
	t.env.T().Log(append([]any{format}, arguments...)...)
	t.env.T().FailNow()
}

// publishedRunner has the policy of the published page.
func publishedRunner() *sandboxv1.ManagedRunner {
	return &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{
			RunnerId: "demo-runner", RunnerGroupId: "default", Zone: "us-east-01a",
			ClusterId: "7c9e6679-7425-40de-944b-e07fc1f90ae7", ClusterName: "this-host",
		},
		Spec: &sandboxv1.ManagedRunnerSpec{
			ReleaseChannel: sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE,
			MaintenancePolicy: &sandboxv1.MaintenancePolicy{
				Windows: []*sandboxv1.MaintenanceWindow{{Cron: "0 2 * * SAT", DurationSeconds: 3600}},
			},
		},
		Policy: &sandboxv1.Policy{
			DisplayName: "Sandbox constraints",
			Constraints: &sandboxv1.PolicyConstraints{
				Resources: &sandboxv1.ResourceConstraints{
					DefaultCpu: "1", DefaultMemory: "2Gi", MaxCpu: "8", MaxMemory: "32Gi", MaxGpuCount: proto.Int64(0),
				},
				Lifecycle: &sandboxv1.LifecycleConstraints{DefaultLifetimeSeconds: proto.Int64(3600)},
			},
		},
		Etag:             "etag-1",
		InstallStatus:    sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_READY,
		ConnectionStatus: sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_CONNECTED,

		NotApplicableOverrides: []string{"labels", "scaling"},
		ActiveRevision:         1,
		TargetRevision:         2,
	}
}
