package provider_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/sandbar-project/sandbar/internal/provider"
)

// target is a server that the suite runs against: the fake one, or a real one
// named by the environment (SANDBAR_TEST_ENDPOINT, _TOKEN, _CLUSTER_ID, _ZONE).
type target struct {
	endpoint, token, cluster, zone, id string
	// fake is nil for a real server, of which requests cannot be counted.
	fake *fake
}

// anyServer is the real server when the environment names one, else a fake.
func anyServer(t *testing.T) target {
	t.Helper()
	endpoint := os.Getenv("SANDBAR_TEST_ENDPOINT")
	if endpoint == "" {
		return fakeServer(t, newFake(t))
	}
	return target{
		endpoint: endpoint, token: os.Getenv("SANDBAR_TEST_TOKEN"),
		cluster: os.Getenv("SANDBAR_TEST_CLUSTER_ID"), zone: os.Getenv("SANDBAR_TEST_ZONE"),
		id: fmt.Sprintf("suite-%d", time.Now().UnixNano()%1_000_000_000),
	}
}

// fakeServer is for what only a fake can be brought to do.
func fakeServer(t *testing.T, f *fake) target {
	t.Helper()
	return target{
		endpoint: f.serve(), token: fakeToken, cluster: "0f6f3a52-8d3d-4f3c-9b55-3f4d8f0f7a10",
		zone: "us-east-04a", id: "runner-1", fake: f,
	}
}

// runner is a configuration of one runner with the given body.
func (s target) runner(body string) string { return s.runnerIn(fmt.Sprintf("%q", s.zone), body) }

func (s target) runnerIn(zone, body string) string {
	return fmt.Sprintf(`
resource "coreweave_sandbox_managed_runner" "runner" {
  runner_id  = %q
  cluster_id = %q
  zone       = %s
  %s
}
`, s.id, s.cluster, zone, body)
}

const address = "coreweave_sandbox_managed_runner.runner"

func pace() provider.Pace {
	return provider.Pace{
		RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond,
		DeletionPoll: 5 * time.Millisecond, DeletionLimit: time.Minute,
	}
}

// run carries out the steps with the installed Terraform; nothing is
// downloaded.
func (s target) run(t *testing.T, steps ...resource.TestStep) {
	t.Helper()
	s.runAt(t, pace(), steps...)
}

func (s target) runAt(t *testing.T, at provider.Pace, steps ...resource.TestStep) {
	t.Helper()
	binary, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("terraform is not installed: the provider's acceptance tests need it on the PATH")
	}
	t.Setenv("TF_ACC_TERRAFORM_PATH", binary)
	t.Setenv("CHECKPOINT_DISABLE", "1")
	t.Setenv("TF_ACC_PROVIDER_NAMESPACE", "coreweave")
	t.Setenv("COREWEAVE_API_ENDPOINT", s.endpoint)
	t.Setenv("COREWEAVE_API_TOKEN", s.token)
	t.Setenv("COREWEAVE_HTTP_TIMEOUT", "")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: map[string]func() (tfprotov6.ProviderServer, error){
			"coreweave": providerserver.NewProtocol6WithError(provider.New(at)),
		},
		Steps: steps,
	})
}

// bearer is the token of a call.
func bearer(ctx context.Context) string {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	return strings.TrimPrefix(info.RequestHeader().Get("Authorization"), "Bearer ")
}

func timestamp(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return at
}
