package runner

import (
	"testing"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// order is how far a state is from the beginning.
var order = map[sandboxv1.State]int{
	sandboxv1.State_STATE_CREATING:    0,
	sandboxv1.State_STATE_RUNNING:     1,
	sandboxv1.State_STATE_TERMINATING: 2,
	sandboxv1.State_STATE_COMPLETED:   3,
	sandboxv1.State_STATE_FAILED:      3,
	sandboxv1.State_STATE_TERMINATED:  3,
}

var events = []event{eventStarted, eventFailed, eventExited, eventStopRequested, eventEnded}

func TestStatesOnlyMoveForward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := sandboxv1.State_STATE_CREATING
		for _, e := range rapid.SliceOf(rapid.SampledFrom(events)).Draw(t, "events") {
			to, ok := next(state, e)
			switch {
			case !ok && to != state:
				t.Fatalf("%s in %s is ignored, but leads to %s", e, state, to)
			case ok && terminal(state):
				t.Fatalf("%s leaves the terminal state %s", e, state)
			case ok && order[to] <= order[state]:
				t.Fatalf("%s leads from %s back to %s", e, state, to)
			}
			state = to
		}
	})
}

func TestEveryStateCanBeStoppedAndEnds(t *testing.T) {
	for state := range order {
		if terminal(state) {
			continue
		}
		if state != sandboxv1.State_STATE_TERMINATING {
			var ok bool
			if state, ok = next(state, eventStopRequested); !ok {
				t.Errorf("%s cannot be stopped", state)
			}
		}
		if to, ok := next(state, eventEnded); !ok || to != sandboxv1.State_STATE_TERMINATED {
			t.Errorf("%s ends as %s", state, to)
		}
	}
}

func TestTableHasOneRowForAnEvent(t *testing.T) {
	type key struct {
		from sandboxv1.State
		e    event
	}
	seen := map[key]bool{}
	for _, row := range transitions {
		k := key{row.from, row.event}
		if seen[k] {
			t.Errorf("%s in %s has two rows", row.event, row.from)
		}
		seen[k] = true
	}
}
