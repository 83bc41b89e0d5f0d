package runner

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// event is what happens to a sandbox.
type event string

const (
	// eventStarted: the main process runs.
	eventStarted event = "started"
	// eventFailed: it cannot be started, or what it ran in is gone.
	eventFailed event = "failed"
	// eventExited: the main process ended by itself.
	eventExited event = "exited"
	// eventStopRequested: somebody asked for the end, or the lifetime is over.
	eventStopRequested event = "stop requested"
	// eventEnded: nothing of it is left after a stop.
	eventEnded event = "ended"
)

// transition is one row of the table.
type transition struct {
	from  sandboxv1.State
	event event
	to    sandboxv1.State
}

// transitions is the life of a sandbox. What is not here changes nothing: a
// state only moves forward, and a terminal one stays.
var transitions = []transition{
	{sandboxv1.State_STATE_CREATING, eventStarted, sandboxv1.State_STATE_RUNNING},
	{sandboxv1.State_STATE_CREATING, eventFailed, sandboxv1.State_STATE_FAILED},
	{sandboxv1.State_STATE_CREATING, eventStopRequested, sandboxv1.State_STATE_TERMINATING},
	{sandboxv1.State_STATE_RUNNING, eventExited, sandboxv1.State_STATE_COMPLETED},
	{sandboxv1.State_STATE_RUNNING, eventFailed, sandboxv1.State_STATE_FAILED},
	{sandboxv1.State_STATE_RUNNING, eventStopRequested, sandboxv1.State_STATE_TERMINATING},
	{sandboxv1.State_STATE_TERMINATING, eventEnded, sandboxv1.State_STATE_TERMINATED},
}

// next finds where an event leads; ok is false when it changes nothing.
func next(from sandboxv1.State, e event) (to sandboxv1.State, ok bool) {
	for _, row := range transitions {
		if row.from == from && row.event == e {
			return row.to, true
		}
	}
	return from, false
}

// terminal says that a state is the last one.
func terminal(state sandboxv1.State) bool {
	switch state {
	case sandboxv1.State_STATE_COMPLETED, sandboxv1.State_STATE_FAILED, sandboxv1.State_STATE_TERMINATED:
		return true
	default:
		return false
	}
}
