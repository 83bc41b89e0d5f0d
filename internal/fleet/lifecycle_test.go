package fleet

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

var (
	allPhases = []Phase{
		PhasePending, PhaseProvisioning, PhaseReady, PhaseRolling, PhaseFailed, PhaseDraining, PhaseUninstalling, PhaseGone,
	}
	allEvents = []event{
		eventStarted, eventEdited, eventServing, eventRefused, eventLost, eventOverdue, eventDeleteRequested, eventDrained, eventUninstalled,
	}
)

func TestTableHasOneRowForAnEvent(t *testing.T) {
	seen := map[Phase]map[event]bool{}
	for _, row := range transitions {
		if seen[row.from] == nil {
			seen[row.from] = map[event]bool{}
		}
		if seen[row.from][row.event] {
			t.Errorf("%s has two rows for %q", row.from, row.event)
		}
		seen[row.from][row.event] = true
	}
}

func TestEveryPhaseButTheLastCanBeDeletedFrom(t *testing.T) {
	for _, phase := range allPhases {
		row, ok := next(phase, eventDeleteRequested)
		if phase == PhaseGone {
			continue
		}
		if !ok || !row.to.deleting() {
			t.Errorf("deletion from %s leads to %q", phase, row.to)
		}
	}
}

func TestEveryPhaseWithADeadlineLeavesIt(t *testing.T) {
	for phase := range deadlines {
		row, ok := next(phase, eventOverdue)
		if !ok || row.to == phase {
			t.Errorf("%s stays for ever", phase)
		}
	}
}

func TestEveryPhaseHasAnInstallStatus(t *testing.T) {
	for _, phase := range allPhases {
		if installStatus(phase) == sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_UNSPECIFIED {
			t.Errorf("%s has no install status", phase)
		}
	}
}

// Whatever happens in whatever order, a runner's record stays one that makes
// sense.
func TestLifeOfARunner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		record := &RunnerRecord{Phase: PhasePending, LatestRevision: 1, TargetRevision: 1, PhaseTime: now}
		failure := &sandboxv1.InstallError{Reason: sandboxv1.InstallError_CRASH_LOOP}
		served := []int32{0}
		for i, e := range rapid.SliceOf(rapid.SampledFrom(allEvents)).Draw(t, "events") {
			now = now.Add(time.Second)
			before := *record
			var forget bool
			if e == eventEdited && !record.Phase.deleting() {
				if retarget(record, Revision{}, now).Number <= before.LatestRevision {
					t.Fatalf("event %d: a revision's number was used twice", i)
				}
			} else if row, ok := next(record.Phase, e); ok && e != eventEdited {
				if e == eventServing {
					served = append(served, record.TargetRevision)
				}
				forget = apply(record, row, failure, now)
			}
			switch {
			case before.Phase.deleting() && !record.Phase.deleting():
				t.Fatalf("event %d, %s: a deleted runner came back from %s to %s", i, e, before.Phase, record.Phase)
			case forget != (record.Phase == PhaseGone):
				t.Fatalf("event %d, %s: forget=%v in %s", i, e, forget, record.Phase)
			case (record.InstallError != nil) != (record.Phase == PhaseFailed):
				t.Fatalf("event %d, %s: install error %v in %s", i, e, record.InstallError, record.Phase)
			case !slices.Contains(served, record.ActiveRevision):
				t.Fatalf("event %d, %s: revision %d is active and never served", i, e, record.ActiveRevision)
			case record.Phase == PhaseReady && record.ActiveRevision != record.TargetRevision:
				t.Fatalf("event %d, %s: ready with active %d and target %d", i, e, record.ActiveRevision, record.TargetRevision)
			case record.Phase == PhaseRolling && (record.ActiveRevision == 0 || record.ActiveRevision == record.TargetRevision):
				t.Fatalf("event %d, %s: rolling with active %d and target %d", i, e, record.ActiveRevision, record.TargetRevision)
			case record.Phase != before.Phase && !record.PhaseTime.Equal(now):
				t.Fatalf("event %d, %s: the phase changed, its time did not", i, e)
			}
			if forget {
				return
			}
		}
	})
}
