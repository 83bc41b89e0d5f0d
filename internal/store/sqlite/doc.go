// Package sqlite keeps everything in one SQLite database.
//
// It implements the stores that auth, fleet and gateway declare. Invariants: a
// write that was answered survives a crash at any instant (write-ahead log,
// full sync at every commit); one connection writes, others read a consistent
// snapshot; migrations only go forward.
//
// Queries are .sql files in queries/ with generated code in db/; the one that
// is put together at run time is in sandbox_list.go, which says why. It must
// not know the rules of the domains.
package sqlite

//go:generate sqlc generate
