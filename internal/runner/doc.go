// Package runner is the process that runs sandboxes on one cluster for a
// control plane elsewhere: it enrols, keeps a tunnel to the gateway open,
// checks every sandbox against the policy that was last pushed, and owns each
// sandbox from its creation until nothing of it is left.
//
// Invariants:
//
//   - One process at a time serves sandboxes of a state directory (a lock on
//     it); another waits in standby, connected, until the lock is free.
//   - A sandbox's record is on disk before the engine makes anything for it,
//     so that a process that starts after a kill finds all there is.
//   - One goroutine owns each sandbox; its state follows the table in
//     lifecycle.go and only moves forward.
//   - Lifetimes hold without the gateway and without the guest.
//   - The process's end leaves sandboxes alone.
//
// It must not import the gateway, the control plane or a store.
package runner
