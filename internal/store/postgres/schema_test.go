package postgres

import (
	"database/sql"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbar-project/sandbar/internal/store/postgrestest"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
)

// sqliteTypes are what SQLite calls PostgreSQL's types.
var sqliteTypes = map[string]string{"text": "TEXT", "bigint": "INTEGER", "bytea": "BLOB"}

// The same queries run on both, and what one holds can be moved to the other.
func TestBothDatabasesHaveTheSameColumns(t *testing.T) {
	databaseURL := postgrestest.Start(t).Database(t)
	store, err := Open(t.Context(), databaseURL, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closed(t, store.Close()) }()
	ours := columns(t, store.handle, `SELECT table_name, column_name, data_type, is_nullable = 'NO' FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name NOT LIKE 'goose%' AND table_name <> 'server_owner'`)
	for name, column := range ours {
		column.dataType = sqliteTypes[column.dataType]
		ours[name] = column
	}

	path := filepath.Join(t.TempDir(), "sandbar.db")
	embedded, err := sqlite.Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closed(t, embedded.Close()) }()
	handle, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closed(t, handle.Close()) }()
	theirs := columns(t, handle, `SELECT m.name, c.name, c.type, c."notnull" OR c.pk > 0 FROM sqlite_master m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name NOT LIKE 'goose%' AND m.name NOT LIKE 'sqlite%'`)
	if diff := cmp.Diff(theirs, ours, cmp.AllowUnexported(column{})); diff != "" {
		t.Errorf("PostgreSQL's schema differs from SQLite's (-SQLite +PostgreSQL):\n%s", diff)
	}
}

type column struct {
	dataType string
	notNull  bool
}

func columns(t *testing.T, handle *sql.DB, query string) map[string]column {
	t.Helper()
	rows, err := handle.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closed(t, rows.Close()) }()
	found := map[string]column{}
	for rows.Next() {
		var table, name string
		var c column
		if err := rows.Scan(&table, &name, &c.dataType, &c.notNull); err != nil {
			t.Fatal(err)
		}
		found[table+"."+name] = c
	}
	closed(t, rows.Err())
	return found
}

func closed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
