// Package maintenance decides when an automatic update of a runner may start:
// inside one of the maintenance policy's windows, or at any time when it has
// none, and never inside an exclusion.
//
// Only the start is bounded. An update that has begun goes on when its window
// closes, and a window says nothing of what a person asks for; an exclusion
// does, see Excluded.
//
// All times are UTC. A policy that cannot be read lets nothing start.
//
// The package is pure: no I/O, no clock, no goroutines. docs/maintenance.md has
// the rules and docs/adr/0005 the decisions behind them.
package maintenance
