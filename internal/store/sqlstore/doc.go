// Package sqlstore keeps everything in a relational database.
//
// It implements the stores that auth, fleet and gateway declare, in SQL that
// SQLite and PostgreSQL both speak; what sets the two apart is a Dialect, and
// the packages that open a database give theirs. Invariants: a write that was
// answered has been committed; what one write reads nobody changes before it
// ends; reads see only what was committed.
//
// Queries are .sql files in queries/ with generated code in db/; the one that
// is put together at run time is in sandbox_list.go, which says why. It must
// not know the rules of the domains.
package sqlstore

//go:generate sqlc generate
