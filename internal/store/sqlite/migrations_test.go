package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"github.com/sandbar-project/sandbar/internal/store/storetest"
)

// files are the migrations, with more added to them.
func files(t *testing.T, more map[string]string) fstest.MapFS {
	t.Helper()
	all := fstest.MapFS{}
	entries, err := migrations.ReadDir("migrations")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := migrations.ReadFile("migrations/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = &fstest.MapFile{Data: data}
	}
	for name, text := range more {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// filled makes a database as a server left it whose schema was at that
// version, and answers with its file.
func filled(t *testing.T, version int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandbar.db")
	handle := open(path, "_txlock=immediate")
	defer func() {
		if err := handle.Close(); err != nil {
			t.Error(err)
		}
	}()
	provider, err := goose.NewProvider(goose.DialectSQLite3, handle, files(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	if _, err := handle.ExecContext(t.Context(), storetest.Filled(t, version)); err != nil {
		t.Fatal(err)
	}
	for table, rows := range dump(t, handle) {
		if len(rows) == 0 {
			t.Errorf("what fills version %d leaves %s empty", version, table)
		}
	}
	return path
}

// dump is every row of every table, column by column.
func dump(t *testing.T, handle *sql.DB) map[string][]string {
	t.Helper()
	tables := map[string][]string{}
	for _, name := range query(t, handle, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%'") {
		name = strings.TrimPrefix(name, "name=")
		tables[name] = query(t, handle, "SELECT * FROM "+name+" ORDER BY 1, 2, 3")
	}
	return tables
}

func query(t *testing.T, handle *sql.DB, text string) (lines []string) {
	t.Helper()
	rows, err := handle.QueryContext(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		var line []string
		for i, column := range columns {
			line = append(line, fmt.Sprintf("%s=%v", column, values[i]))
		}
		lines = append(lines, strings.Join(line, " "))
	}
	return lines
}

func versions(t *testing.T) (all []int64) {
	t.Helper()
	for name := range files(t, nil) {
		version, err := goose.NumericComponent(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, version)
	}
	slices.Sort(all)
	return all
}

// Each schema that servers have had is filled, brought up to date, and read by
// the server of now.
func TestADatabaseOfEveryVersionIsReadAsItWasWritten(t *testing.T) {
	for _, version := range versions(t) {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			store, err := Open(t.Context(), filled(t, version), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			}()
			storetest.CheckFilled(t, store)
		})
	}
}

// A step of the kind that is still to come: it takes place on a database that
// is filled, or leaves it as it was.
func TestAMigrationHappensAsAWholeOrNotAtAll(t *testing.T) {
	const (
		adds   = "-- +goose Up\nALTER TABLE clusters ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
		breaks = adds + "UPDATE sandboxes SET generation = generation + 1;\nINSERT INTO sandboxes SELECT * FROM nowhere;\n"
	)
	latest := slices.Max(versions(t))
	next := fmt.Sprintf("%05d_next.sql", latest+1)
	for name, test := range map[string]struct {
		step string
		ok   bool
	}{"it is applied": {adds, true}, "it fails": {breaks, false}} {
		t.Run(name, func(t *testing.T) {
			path := filled(t, latest)
			handle := open(path, "_txlock=immediate")
			before := dump(t, handle)
			var more fs.FS = files(t, map[string]string{next: test.step})
			// Twice: a server that is started again tries again.
			for range 2 {
				if err := migrate(context.WithoutCancel(t.Context()), handle, more, slog.New(slog.DiscardHandler)); (err == nil) != test.ok {
					t.Fatalf("migrate: %v", err)
				}
			}
			want := maps.Clone(before)
			if test.ok {
				want["clusters"] = []string{before["clusters"][0] + " colour=red"}
			}
			if diff := cmp.Diff(want, dump(t, handle)); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if err := handle.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
