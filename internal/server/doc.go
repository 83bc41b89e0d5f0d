// Package server composes one process: store, control plane, gateway,
// listeners, TLS, interceptors, REST, and their orderly end.
//
// Invariants: nothing is served before everything has started; no request is
// cut short before its grace is over; every public procedure is in the table
// of roles.
//
// It must not know the rules of a domain.
package server
