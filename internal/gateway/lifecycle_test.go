package gateway

import (
	"testing"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// rank orders the states: a sandbox never goes to a lower one (trap 17).
func rank(state sandboxv1.State) int {
	switch state {
	case creating:
		return 0
	case running:
		return 1
	case terminating:
		return 2
	default:
		return 3
	}
}

func TestASandboxOnlyMovesForwardAndItsEndIsFinal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state, requested := creating, false
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			e := event(rapid.IntRange(int(observedCreating), int(lost)).Draw(t, "event"))
			requested = requested || e == terminationRequested
			to, moved := next(state, e, requested)
			if moved && rank(to) <= rank(state) {
				t.Fatalf("event %d leads back from %v to %v", e, state, to)
			}
			if !moved && to != state {
				t.Fatalf("event %d moves %v to %v without saying so", e, state, to)
			}
			if ended(state) && moved {
				t.Fatalf("event %d leads out of %v", e, state)
			}
			if e == lost && !ended(to) {
				t.Fatalf("a lost sandbox is left in %v", to)
			}
			state = to
		}
	})
}

func TestTheTransitionsAreUnambiguous(t *testing.T) {
	type key struct {
		from  sandboxv1.State
		event event
	}
	seen := map[key][]guard{}
	for _, row := range transitions {
		k := key{row.from, row.event}
		for _, other := range seen[k] {
			if other == row.guard || other == always || row.guard == always {
				t.Errorf("two rows for event %d in %v hold at once", row.event, row.from)
			}
		}
		seen[k] = append(seen[k], row.guard)
	}
}

func TestAStopIsNeverReportedAsAFailure(t *testing.T) { // trap 10
	for _, e := range []event{observedCompleted, observedFailed, observedTerminated, lost} {
		if to, _ := next(terminating, e, true); to != terminated {
			t.Errorf("event %d after a stop leads to %v", e, to)
		}
	}
}

func TestWhatEndedByItselfStaysAsItEnded(t *testing.T) { // trap 11
	for _, state := range []sandboxv1.State{completed, failed} {
		if to, moved := next(state, terminationRequested, true); moved {
			t.Errorf("a stop turns %v into %v", state, to)
		}
	}
}

func TestUnknownStatesAreNoObservations(t *testing.T) { // traps 15 and 16
	for _, state := range []sandboxv1.State{0, sandboxv1.State_STATE_PAUSED, 99} {
		if e, ok := observation(state); ok {
			t.Errorf("state %d is taken as event %d", state, e)
		}
	}
}
