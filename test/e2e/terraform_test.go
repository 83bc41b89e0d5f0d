package e2e

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const providerVersion = "0.27.0"

// terraform runs Terraform in a directory of its own, with the provider where
// its implied local mirror is.
type terraform struct {
	t         *testing.T
	directory string
	env       []string
}

func newTerraform(t *testing.T, s *system) *terraform {
	t.Helper()
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Skip("terraform is not installed")
	}
	home := t.TempDir()
	target := filepath.Join(home, ".terraform.d/plugins/registry.terraform.io/coreweave/coreweave", providerVersion,
		runtime.GOOS+"_"+runtime.GOARCH, "terraform-provider-coreweave_v"+providerVersion)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", target, "../../cmd/terraform-provider-coreweave")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the provider: %v\n%s", err, out)
	}
	env := []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TF_IN_AUTOMATION=1", "TF_INPUT=0", "CHECKPOINT_DISABLE=1"}
	for _, pair := range s.env {
		if strings.HasPrefix(pair, "TF_VAR_") || strings.HasPrefix(pair, "COREWEAVE_") {
			env = append(env, pair)
		}
	}
	return &terraform{t: t, directory: t.TempDir(), env: env}
}

// run returns the output and the exit code.
func (tf *terraform) run(arguments ...string) (string, int) {
	tf.t.Helper()
	command := exec.CommandContext(tf.t.Context(), "terraform", append(arguments, "-no-color")...)
	command.Dir, command.Env = tf.directory, tf.env
	out, err := command.CombinedOutput()
	if command.ProcessState == nil {
		tf.t.Fatalf("terraform %s: %v", strings.Join(arguments, " "), err)
	}
	return string(out), command.ProcessState.ExitCode()
}

func (tf *terraform) must(arguments ...string) string {
	tf.t.Helper()
	out, code := tf.run(arguments...)
	if code != 0 {
		tf.t.Fatalf("terraform %s ended with %d:\n%s", strings.Join(arguments, " "), code, out)
	}
	return out
}

// status refreshes and reads the example's output.
func (tf *terraform) status() string {
	tf.t.Helper()
	tf.must("apply", "-refresh-only", "-auto-approve")
	return tf.must("output", "-json", "runner_status")
}

func TestTheExampleConfigurationRunsSandboxesUnderItsPolicy(t *testing.T) {
	s := startEmpty(t)
	tf := newTerraform(t, s)
	if err := os.CopyFS(tf.directory, os.DirFS("../../examples/managed-runner")); err != nil {
		t.Fatal(err)
	}
	tf.must("init")
	tf.must("validate")
	tf.must("apply", "-auto-approve")
	s.awaitRunner()
	s.readEngineName()
	if status := tf.status(); !strings.Contains(status, "RUNNER_INSTALL_STATUS_READY") {
		t.Errorf("the output does not show a ready runner: %s", status)
	}
	if out, code := tf.run("plan", "-detailed-exitcode"); code != 0 {
		t.Errorf("a second plan is not empty:\n%s", out)
	}

	if got := s.run("", "run", "busybox:1", "--", "echo", "hello"); got.code != 0 || got.stdout != "hello\n" {
		t.Errorf("a sandbox under the policy ended with %d: %q %s", got.code, got.stdout, got.stderr)
	}
	for _, refused := range []struct{ flag, value, rule string }{
		{"--cpu", "16", "policy.constraints.resources.max_cpu"},
		{"--memory", "64Gi", "policy.constraints.resources.max_memory"},
		{"--gpu", "1", "policy.constraints.resources.max_gpu_count"},
	} {
		got := s.run("", "run", refused.flag, refused.value, "busybox:1", "--", "true")
		if got.code != 6 || !strings.Contains(got.stderr, refused.rule) {
			t.Errorf("%s %s ended with %d, and the message is %q; want a refusal that names %s",
				refused.flag, refused.value, got.code, got.stderr, refused.rule)
		}
	}

	tf.must("destroy", "-auto-approve")
	s.interrupt()
	s.nothingLeft()
}

// TestThePublishedPage takes the page of the platform's documentation through
// its whole life, as it is written there. The page is not ours to copy: it is
// looked for beside the checkout, or where SANDBAR_PUBLISHED_PAGE says.
func TestThePublishedPage(t *testing.T) {
	page := os.Getenv("SANDBAR_PUBLISHED_PAGE")
	if page == "" {
		found, err := filepath.Glob("../../../shared/seed/*.md")
		if err != nil || len(found) == 0 {
			t.Skip("the published page is not here: set SANDBAR_PUBLISHED_PAGE to its path")
		}
		page = found[0]
	}
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is not installed")
	}
	s := startEmpty(t)
	tf := newTerraform(t, s)
	var out bytes.Buffer
	// One writer for both: os/exec then copies them one after the other.
	both := io.MultiWriter(&out, testOutput{t})
	script := exec.CommandContext(t.Context(), "./published_page.sh", page)
	script.Env = tf.env
	script.Stdout, script.Stderr = both, both
	if err := script.Run(); err != nil {
		t.Fatalf("%v:\n%s", err, out.String())
	}
	s.interrupt()
	s.nothingLeft()
}

// testOutput shows a script's steps as they come.
type testOutput struct{ t *testing.T }

func (o testOutput) Write(p []byte) (int, error) {
	o.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
