// Package sqlite keeps everything in one SQLite database, a file.
//
// What is kept, and how, is sqlstore's; here are the file, its schema and what
// is particular to SQLite. Invariants: a write that was answered survives a
// crash at any instant (write-ahead log, full sync at every commit); one
// connection writes, others read a consistent snapshot; migrations only go
// forward.
package sqlite
