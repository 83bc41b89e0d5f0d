// Package enginetest is the behaviour that every engine shows, as tests. An
// engine's own tests call Run. The suite brings its own guest (BuildGuest), its
// own image and registry, and, for the network, its own small internet in a
// network namespace: no packet leaves the machine.
//
// Leftovers and Snapshot tell what the machine has now that it did not have
// before; other tests use them, too.
//
// The package must not import any particular engine.
package enginetest
