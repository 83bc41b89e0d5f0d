package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/runner"
)

// failure is an error with what an InstallError says of it.
type failure struct {
	reason  sandboxv1.InstallError_Reason
	message string
	detail  string
	hints   []string
}

// Error is the message alone.
func (f *failure) Error() string { return f.message }

// installError is what the control plane shows.
func (i *Installer) installError(err error) *sandboxv1.InstallError {
	out := &sandboxv1.InstallError{
		Reason:     sandboxv1.InstallError_INTERNAL,
		Message:    err.Error(),
		OccurredAt: timestamppb.New(i.options.Clock.Now()),
	}
	var f *failure
	if errors.As(err, &f) {
		out.Reason, out.Message, out.DiagnosticDetail, out.RemediationHints = f.reason, f.message, f.detail, f.hints
	}
	return out
}

// runtimes are what the local engine can use, best first.
var runtimes = []string{"runsc", "crun", "runc"}

// CheckHost says why no runner can work on this host: it is not run by root,
// or has no OCI runtime, or the guest's binary is missing. Whether the runtime
// really works is found out by the runner.
func CheckHost(config runner.EngineConfig) error {
	if os.Geteuid() != 0 {
		return &failure{
			reason:  sandboxv1.InstallError_CLUSTER_FORBIDDEN,
			message: "the server does not run as root, so it cannot make sandboxes on this host",
			hints:   []string{"Run the server as root, for example with sudo.", "Or register a Kubernetes cluster and put the runner there."},
		}
	}
	if info, err := os.Stat(config.GuestBinary); err != nil || !info.Mode().IsRegular() {
		return &failure{
			reason:  sandboxv1.InstallError_RUNTIME_UNAVAILABLE,
			message: fmt.Sprintf("the guest's binary %s is not there", config.GuestBinary),
			hints:   []string{"Build sandbar-guest and put it beside the sandbar binary (make build does both)."},
		}
	}
	return checkRuntime(config)
}

func checkRuntime(config runner.EngineConfig) error {
	candidates := runtimes
	if config.Runtime != "" {
		candidates = []string{config.Runtime}
	}
	if config.RuntimePath != "" {
		candidates = []string{config.RuntimePath}
	}
	for _, candidate := range candidates {
		if _, err := exec.LookPath(candidate); err == nil {
			return nil
		}
		for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
			if info, err := os.Stat(filepath.Join(dir, filepath.Base(candidate))); err == nil && info.Mode().IsRegular() {
				return nil
			}
		}
	}
	return &failure{
		reason:  sandboxv1.InstallError_RUNTIME_UNAVAILABLE,
		message: fmt.Sprintf("this host has no OCI runtime: looked for %v", candidates),
		hints:   []string{"Install one: apt-get install runc, or gVisor's runsc (make demo does that).", "Then edit the runner, or wait: it is tried again."},
	}
}
