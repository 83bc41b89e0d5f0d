// Package fleet declares clusters and managed runners, keeps their revisions,
// and makes what runs follow what was declared.
//
// Invariants: an accepted write is in the store before the caller hears of it;
// the API reports only what was observed; a runner's etag changes exactly when
// its policy changes; a revision is never edited; every step of a rollout can
// be repeated by a process that knows nothing of the one before.
//
// It must not import engines, the runner or a kind of installer.
package fleet
