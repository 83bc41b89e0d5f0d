package runner

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

const (
	installPrefix    = "RUNNER_INSTALL_STATUS_"
	connectionPrefix = "RUNNER_CONNECTION_STATUS_"
)

func newDescribe(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "describe RUNNER",
		Short: "Show all of a runner: status, deployment, policy",
		Long: `Show all of a runner: what is declared, what is observed, and the policy, with
every rule that is not set named as such. A rule that is not set restricts
nothing; a rule that is 0 or empty may.`,
		Example: `  sandbar runner describe demo-runner
  sandbar runner describe -o yaml demo-runner`,
		Args: invocation.Args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runDescribe(command.Context(), call, args[0])
		},
	}
}

func runDescribe(ctx context.Context, call *invocation.Invocation, id string) error {
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: id})
	if err != nil {
		return err
	}
	return output.PrintText(call.IO.Out, call.Format, response, func(w io.Writer) error {
		return describe(w, call, response)
	})
}

func describe(w io.Writer, call *invocation.Invocation, runner *sandboxv1.ManagedRunner) error {
	identity := runner.GetIdentity()
	text := &output.Text{}
	text.Field("Runner", identity.GetRunnerId())
	text.Field("Display name", runner.GetDisplayName())
	text.Field("Group", identity.GetRunnerGroupId())
	text.Field("Zone", identity.GetZone())
	text.Field("Cluster", cluster(identity))
	text.Field("Cluster id", identity.GetClusterId())
	text.Field("Created", moment(call, runner.GetCreateTime()))
	text.Field("Updated", moment(call, runner.GetUpdateTime()))

	text.Section("Status", func() {
		text.Field("Install", output.Word(runner.GetInstallStatus(), installPrefix))
		text.Field("Connection", output.Word(runner.GetConnectionStatus(), connectionPrefix))
		text.Field("Last heartbeat", moment(call, runner.GetLastHeartbeatTime()))
		text.Field("Active revision", number(runner.GetActiveRevision()))
		text.Field("Target revision", number(runner.GetTargetRevision()))
		text.Field("Rollout in progress", yesNo(runner.GetRolloutInProgress()))
		text.Field("Version", runner.GetActiveConfigVersion())
		text.Field("Update available", yesNo(runner.GetUpdateAvailable()))
	})
	if failure := runner.GetInstallError(); failure != nil {
		text.Section("Install error", func() {
			text.Field("Reason", failure.GetReason().String())
			text.Field("Message", failure.GetMessage())
			text.Field("Occurred", moment(call, failure.GetOccurredAt()))
			text.Field("Detail", failure.GetDiagnosticDetail())
			text.List("What to do", failure.GetRemediationHints())
		})
	}
	text.Section("Deployment", func() {
		spec := runner.GetSpec()
		text.Field("Release channel", output.Word(spec.GetReleaseChannel(), "RELEASE_CHANNEL_"))
		text.List("Maintenance windows", windows(spec.GetMaintenancePolicy()))
		text.List("Maintenance exclusions", exclusions(spec.GetMaintenancePolicy()))
		text.Field("Sandboxes must set limits", optionalBool(spec.EnforceResourceLimits))
		text.Field("Image pull", output.Word(spec.GetImagePull().GetPolicy(), "SANDBOX_IMAGE_PULL_POLICY_"))
		if overrides := spec.GetOverrides(); overrides != nil {
			text.Message("Overrides", overrides)
		}
		if unused := runner.GetNotApplicableOverrides(); len(unused) > 0 {
			text.List("Without a meaning here", unused)
		}
	})
	describePolicy(text, runner)
	_, err := io.WriteString(w, text.String())
	return err
}

func revision(runner *sandboxv1.ManagedRunner) string {
	if runner.GetActiveRevision() == runner.GetTargetRevision() {
		return number(runner.GetActiveRevision())
	}
	return fmt.Sprintf("%d→%d", runner.GetActiveRevision(), runner.GetTargetRevision())
}

func cluster(identity *sandboxv1.RunnerIdentity) string {
	if identity.GetClusterName() != "" {
		return identity.GetClusterName()
	}
	return output.OrUnset(identity.GetClusterId())
}

func windows(policy *sandboxv1.MaintenancePolicy) []string {
	var lines []string
	for _, window := range policy.GetWindows() {
		lines = append(lines, fmt.Sprintf("%s (UTC) for %s", window.GetCron(), seconds(window.GetDurationSeconds())))
	}
	return lines
}

func exclusions(policy *sandboxv1.MaintenancePolicy) []string {
	var lines []string
	for _, exclusion := range policy.GetExclusions() {
		line := output.Time(exclusion.GetStartTime()) + " to " + output.Time(exclusion.GetEndTime())
		lines = append(lines, strings.TrimSpace(line+" "+exclusion.GetReason()))
	}
	return lines
}
