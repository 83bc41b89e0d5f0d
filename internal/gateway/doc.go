// Package gateway takes every sandbox request, places it on a runner and
// relays streams to and from it.
//
// Invariants: a sandbox's state only moves forward; what was accepted is in the
// store before the caller hears of it; no stream is buffered here; nothing
// scans all sandboxes to serve one.
//
// It must not import engines or the control plane: what it needs of declared
// runners is the interface Runners.
package gateway
