// Package postgres keeps everything in one PostgreSQL database.
//
// What is kept, and how, is sqlstore's; here are the connections, the schema
// and what is particular to PostgreSQL. Invariants: a write that was answered
// is as durable as the server makes a commit (synchronous_commit is on, whatever
// the server's default); one process uses a database at a time; migrations only
// go forward.
package postgres
