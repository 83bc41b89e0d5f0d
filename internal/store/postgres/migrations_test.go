package postgres

import (
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/sandbar-project/sandbar/internal/store/postgrestest"
	"github.com/sandbar-project/sandbar/internal/store/storetest"
)

// octets are bytes as SQLite writes them.
var octets = regexp.MustCompile(`\bx'([0-9a-f]*)'`)

// Each schema that servers have had is filled, brought up to date, and read by
// the server of now.
func TestADatabaseOfEveryVersionIsReadAsItWasWritten(t *testing.T) {
	server := postgrestest.Start(t)
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			databaseURL := server.Database(t)
			_, handle, err := connect(databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { closed(t, handle.Close()) }()
			provider, err := goose.NewProvider(goose.DialectPostgres, handle, files)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := provider.UpTo(t.Context(), version); err != nil {
				t.Fatal(err)
			}
			if _, err := handle.ExecContext(t.Context(), octets.ReplaceAllString(storetest.Filled(t, version), `'\x$1'`)); err != nil {
				t.Fatal(err)
			}
			store, err := Open(t.Context(), databaseURL, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { closed(t, store.Close()) }()
			storetest.CheckFilled(t, store)
		})
	}
}
