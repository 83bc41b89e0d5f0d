// Package managedrunner knows the rules of a managed runner's declaration:
// which values are sound, what an update mask may name, and how a masked update
// changes what was declared.
//
// The control plane keeps them when it is asked to write; clients (the provider,
// the command line) use the same ones to say at once what would be refused.
//
// The package is pure: no I/O, no clock, no goroutines. It knows neither the
// control plane nor its store.
package managedrunner
