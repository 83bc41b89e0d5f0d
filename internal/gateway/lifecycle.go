package gateway

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// event is what moves a sandbox from one state to another.
type event int

const (
	// The runner has reported that state.
	observedCreating event = iota + 1
	observedRunning
	observedTerminating
	observedCompleted
	observedFailed
	observedTerminated
	// terminationRequested: somebody has asked for the sandbox's end.
	terminationRequested
	// lost: the runner does not know a sandbox that it had; or it can never be
	// created.
	lost
)

// guard is a condition on a transition.
type guard int

const (
	always guard = iota
	// ifRequested: termination has been requested before, so that the sandbox
	// ends as TERMINATED whatever its processes said.
	ifRequested
	ifNotRequested
)

type transition struct {
	from  sandboxv1.State
	event event
	guard guard
	to    sandboxv1.State
}

const (
	creating    = sandboxv1.State_STATE_CREATING
	running     = sandboxv1.State_STATE_RUNNING
	terminating = sandboxv1.State_STATE_TERMINATING
	completed   = sandboxv1.State_STATE_COMPLETED
	failed      = sandboxv1.State_STATE_FAILED
	terminated  = sandboxv1.State_STATE_TERMINATED
)

// transitions is the life of a sandbox. What is not here does not happen: the
// event leaves the state as it is. docs/gateway.md draws the same table.
var transitions = []transition{
	{creating, observedRunning, always, running},
	{creating, observedTerminating, always, terminating},
	{creating, observedCompleted, always, completed},
	{creating, observedFailed, always, failed},
	{creating, observedTerminated, always, terminated},
	{creating, terminationRequested, always, terminating},
	{creating, lost, always, failed},

	{running, observedTerminating, always, terminating},
	{running, observedCompleted, always, completed},
	{running, observedFailed, always, failed},
	{running, observedTerminated, always, terminated},
	{running, terminationRequested, always, terminating},
	{running, lost, always, failed},

	// A sandbox that ends by itself, because its lifetime is over, keeps the
	// end that the runner gives it.
	{terminating, observedCompleted, ifNotRequested, completed},
	{terminating, observedFailed, ifNotRequested, failed},
	{terminating, lost, ifNotRequested, failed},
	{terminating, observedCompleted, ifRequested, terminated},
	{terminating, observedFailed, ifRequested, terminated},
	{terminating, lost, ifRequested, terminated},
	{terminating, observedTerminated, always, terminated},
}

// next is where the event leads; false when it leads nowhere.
func next(from sandboxv1.State, e event, requested bool) (sandboxv1.State, bool) {
	for _, t := range transitions {
		if t.from != from || t.event != e {
			continue
		}
		if t.guard == always || (t.guard == ifRequested) == requested {
			return t.to, true
		}
	}
	return from, false
}

// observation is the event of a runner that reports a state; false for states
// that no runner should report.
func observation(state sandboxv1.State) (event, bool) {
	switch state {
	case sandboxv1.State_STATE_CREATING, sandboxv1.State_STATE_PENDING:
		return observedCreating, true
	case sandboxv1.State_STATE_RUNNING:
		return observedRunning, true
	case sandboxv1.State_STATE_TERMINATING:
		return observedTerminating, true
	case sandboxv1.State_STATE_COMPLETED:
		return observedCompleted, true
	case sandboxv1.State_STATE_FAILED:
		return observedFailed, true
	case sandboxv1.State_STATE_TERMINATED:
		return observedTerminated, true
	default:
		return 0, false
	}
}

// ended says whether the state is final.
func ended(state sandboxv1.State) bool {
	return state == completed || state == failed || state == terminated
}
