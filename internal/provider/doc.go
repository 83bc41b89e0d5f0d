// Package provider is the Terraform provider coreweave/coreweave: the resource
// coreweave_sandbox_managed_runner, and the provider block that says where the
// API is.
//
// It is a client like any other. It speaks Connect with JSON to
// RunnerManagementService, because only the names of that contract are public,
// so it works against every server that keeps the names.
//
// Invariants:
//   - Only what a person configured is ever written, and nothing when nothing
//     changed: the update mask names what differs between plan and state.
//   - What the server observes (status, revisions, times) never makes a plan
//     non-empty.
//   - A write that the server refuses because of a stale etag is reported and
//     never repeated with a fresh one.
//
// It must not import any server package; internal/apierr is shared.
package provider
