// Package policy decides what a sandbox gets: it resolves a sandbox's spec
// against the policy of a runner, checks the result against the policy's
// constraints, and says for everything that is refused which rule refused it.
//
// Invariants:
//   - The same request gives the same answer, wherever it is asked: the gateway
//     asks when it places a sandbox, the runner asks again when it starts it.
//   - Nothing is narrowed or clamped to fit. A value is given, filled in where
//     it was left out, or refused.
//   - A refusal names every rule that is broken, not the first one.
//   - What cannot be parsed is refused, never ignored.
//
// The rules, one by one, are in docs/policy.md; those on which the public
// material is silent are argued in docs/adr/0005.
//
// The package is pure: no I/O, no clock, no goroutines. It must not import
// engines, the gateway or the control plane.
package policy
