package fleet

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// describe is the runner as the API tells it: the wish, and what was observed.
func (m *Management) describe(record *RunnerRecord) *sandboxv1.ManagedRunner {
	heartbeat := m.registry.lastHeartbeat(record.RunnerKey)
	if heartbeat.Before(record.LastHeartbeatTime) {
		heartbeat = record.LastHeartbeatTime
	}
	runner := &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{
			RunnerId:      record.RunnerID,
			RunnerGroupId: record.RunnerGroupID,
			Zone:          record.Zone,
			ClusterId:     record.ClusterID,
			ClusterName:   record.ClusterName,
		},
		DisplayName:         record.DisplayName,
		Spec:                proto.Clone(record.Spec).(*sandboxv1.ManagedRunnerSpec),
		Etag:                record.ETag,
		InstallStatus:       installStatus(record.Phase),
		ConnectionStatus:    sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_DISCONNECTED,
		ActiveRevision:      record.ActiveRevision,
		ActiveConfigVersion: record.ActiveVersion,
		TargetRevision:      record.TargetRevision,
		UpdateAvailable:     record.Target.Version != m.cfg.Release.Version,
		RolloutInProgress:   record.TargetRevision > record.ActiveRevision,
		DeploymentSpec:      masked(withGateway(record.Target.Deployment, m.cfg.GatewayServer)),
		InstallError:        record.InstallError,
		DataPlaneStatus:     dataPlaneStatus(record.Spec.GetDataPlane()),
		CreateTime:          timestamppb.New(record.CreateTime),
		UpdateTime:          timestamppb.New(record.UpdateTime),
		LastHeartbeatTime:   optionalTimestamp(heartbeat),

		NotApplicableOverrides: m.registry.notApplicable(record.RunnerKey),
	}
	if record.Policy != nil {
		runner.Policy = proto.Clone(record.Policy).(*sandboxv1.Policy)
	}
	if m.registry.connected(record.RunnerKey) {
		runner.ConnectionStatus = sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_CONNECTED
	}
	return runner
}

// dataPlaneStatus is the state of the direct endpoint: nothing when none was
// asked for. No runner of this release serves one, and the status says so.
func dataPlaneStatus(config *sandboxv1.RunnerDataPlaneConfig) *sandboxv1.DataPlaneStatus {
	if config == nil || config.GetDisabled() != nil {
		return nil
	}
	return &sandboxv1.DataPlaneStatus{
		State:   "UNAVAILABLE",
		Message: "runners of this release serve no direct endpoint; clients reach sandboxes through the gateway",
	}
}

func optionalTimestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
