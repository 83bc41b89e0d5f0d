// Package local installs runners on the host that the server runs on: each
// revision is one process of the sandbar binary, with its files in
//
//	DIR/runners/ORG/RUNNER/revisions/N/   config.json, token, credential,
//	                                      process.json, runner.log
//	DIR/runners/ORG/RUNNER/state/         shared by the revisions
//	DIR/runners/ORG/RUNNER/engine/        images and sandboxes
//
// Processes outlive the server. A new server finds them by their process
// number and start time, or by their command line when it was killed before it
// could write these down, and goes on supervising them.
//
// Invariants: a process is signalled only through a descriptor that was checked
// to be of the process meant; secrets are in files that only root reads, never
// in arguments or the environment; Retire leaves sandboxes as they are.
//
// It must not import the gateway or the fleet.
package local
