package fleet

import (
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Phase is where a runner is in its life.
type Phase string

// The phases.
const (
	// PhasePending: accepted; nothing was done yet.
	PhasePending Phase = "pending"
	// PhaseProvisioning: the target revision is on its way and nothing serves.
	PhaseProvisioning Phase = "provisioning"
	// PhaseReady: the active revision is the target.
	PhaseReady Phase = "ready"
	// PhaseRolling: the active revision serves while the target starts beside
	// it.
	PhaseRolling Phase = "rolling"
	// PhaseFailed: no revision serves, and the target does not come up. It is
	// still tried, and may yet become ready.
	PhaseFailed Phase = "failed"
	// PhaseDraining: deletion was asked for; sandboxes are being ended.
	PhaseDraining Phase = "draining"
	// PhaseUninstalling: no sandbox is left; the runner is being taken away.
	PhaseUninstalling Phase = "uninstalling"
	// PhaseGone: nothing is left; the record goes with the same step.
	PhaseGone Phase = "gone"
)

// event is something that was asked for or observed.
type event string

const (
	// eventStarted: the reconciler has taken the runner up.
	eventStarted event = "started"
	// eventEdited: an edit or an update has made a new target revision.
	eventEdited event = "edited"
	// eventServing: the target is connected and has described itself.
	eventServing event = "serving"
	// eventRefused: the cluster says that the target will not run.
	eventRefused event = "refused"
	// eventLost: the active revision is not connected, and the cluster says
	// that it will not run.
	eventLost event = "lost"
	// eventOverdue: the phase has lasted longer than it may.
	eventOverdue event = "overdue"
	// eventDeleteRequested: somebody wants the runner gone.
	eventDeleteRequested event = "delete requested"
	// eventDrained: no sandbox is left.
	eventDrained event = "drained"
	// eventUninstalled: nothing of the runner is left on the cluster.
	eventUninstalled event = "uninstalled"
)

// effect is what a transition does to the record.
type effect string

const (
	// effectActivate makes the target the active revision.
	effectActivate effect = "activate the target"
	// effectRollBack makes the active revision the target again.
	effectRollBack effect = "roll back"
	// effectRecordError stores why no revision serves.
	effectRecordError effect = "record the error"
	// effectClearError forgets it.
	effectClearError effect = "clear the error"
	// effectForget removes the record.
	effectForget effect = "forget"
)

// transition is one row of the table.
type transition struct {
	from    Phase
	event   event
	to      Phase
	effects []effect
}

// transitions is the life of a runner. What is not here does not happen: the
// event is ignored in that phase. docs/operations.md shows the same table.
var transitions = []transition{
	{PhasePending, eventStarted, PhaseProvisioning, nil},
	{PhasePending, eventEdited, PhasePending, nil},
	{PhasePending, eventDeleteRequested, PhaseDraining, nil},

	{PhaseProvisioning, eventServing, PhaseReady, []effect{effectActivate}},
	{PhaseProvisioning, eventRefused, PhaseFailed, []effect{effectRecordError}},
	{PhaseProvisioning, eventOverdue, PhaseFailed, []effect{effectRecordError}},
	{PhaseProvisioning, eventEdited, PhaseProvisioning, nil},
	{PhaseProvisioning, eventDeleteRequested, PhaseDraining, nil},

	{PhaseReady, eventEdited, PhaseRolling, nil},
	{PhaseReady, eventLost, PhaseFailed, []effect{effectRecordError}},
	{PhaseReady, eventDeleteRequested, PhaseDraining, nil},

	{PhaseRolling, eventServing, PhaseReady, []effect{effectActivate}},
	{PhaseRolling, eventRefused, PhaseReady, []effect{effectRollBack}},
	{PhaseRolling, eventOverdue, PhaseReady, []effect{effectRollBack}},
	{PhaseRolling, eventEdited, PhaseRolling, nil},
	{PhaseRolling, eventDeleteRequested, PhaseDraining, nil},

	{PhaseFailed, eventServing, PhaseReady, []effect{effectActivate, effectClearError}},
	{PhaseFailed, eventEdited, PhaseProvisioning, []effect{effectClearError}},
	{PhaseFailed, eventDeleteRequested, PhaseDraining, []effect{effectClearError}},

	{PhaseDraining, eventDrained, PhaseUninstalling, nil},
	{PhaseDraining, eventOverdue, PhaseUninstalling, nil},
	{PhaseDraining, eventDeleteRequested, PhaseDraining, nil},

	{PhaseUninstalling, eventUninstalled, PhaseGone, []effect{effectForget}},
	{PhaseUninstalling, eventOverdue, PhaseGone, []effect{effectForget}},
	{PhaseUninstalling, eventDeleteRequested, PhaseUninstalling, nil},
}

// next finds the row for an event; ok is false when it is ignored.
func next(from Phase, e event) (row transition, ok bool) {
	for _, row := range transitions {
		if row.from == from && row.event == e {
			return row, true
		}
	}
	return transition{}, false
}

// apply moves the record along a row. It answers true when the record is to be
// removed.
func apply(record *RunnerRecord, row transition, failure *sandboxv1.InstallError, now time.Time) (forget bool) {
	if record.Phase != row.to || row.event == eventEdited {
		record.PhaseTime = now
	}
	record.Phase = row.to
	for _, e := range row.effects {
		switch e {
		case effectActivate:
			record.ActiveRevision = record.TargetRevision
		case effectRollBack:
			record.TargetRevision = record.ActiveRevision
		case effectRecordError:
			record.InstallError = failure
		case effectClearError:
			record.InstallError = nil
		case effectForget:
			forget = true
		}
	}
	return forget
}

// installStatus is how the API tells a phase.
func installStatus(phase Phase) sandboxv1.RunnerInstallStatus {
	switch phase {
	case PhasePending:
		return sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_PENDING
	case PhaseProvisioning:
		return sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_PROVISIONING
	case PhaseReady, PhaseRolling:
		return sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_READY
	case PhaseFailed:
		return sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_FAILED
	case PhaseDraining, PhaseUninstalling, PhaseGone:
		return sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_DELETING
	}
	return sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_UNSPECIFIED
}

// deleting says whether the runner is on its way out.
func (p Phase) deleting() bool {
	return p == PhaseDraining || p == PhaseUninstalling || p == PhaseGone
}
