package sqlstore

import (
	"bufio"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An archive is gzip of JSON values, one a line: a header, then each row of each
// table as an object, then a trailer that counts the rows. A row's values are
// numbers, strings, null, and base64 in an object for bytes: what both databases
// keep, so that the one's archive can be restored into the other.

// archiveFormat is what an archive's first line begins with.
const archiveFormat = "sandbar.archive.v1"

// Header is what an archive says of itself.
type Header struct {
	Format     string    `json:"format"`
	CreateTime time.Time `json:"create_time"`
	// Version of the program that made it.
	Version string `json:"version"`
	// Schema is the number of the last migration of the database.
	Schema int64 `json:"schema"`
	// Files are what belongs to the database and is not in it, by name.
	Files map[string][]byte `json:"files,omitempty"`
}

// ErrNotEmpty is what Import answers with: an archive can only be restored into an empty database.
var ErrNotEmpty = errors.New("the database is not empty")

// row is a line of an archive after the first. The last has the count alone.
type row struct {
	Table  string                     `json:"table,omitempty"`
	Values map[string]json.RawMessage `json:"values,omitempty"`
	Rows   *int64                     `json:"rows,omitempty"`
}

// table is one of the database's.
type table struct {
	name string
	// generated is a column whose values each database makes by itself, in the
	// order in which rows come.
	generated string
}

// tables are all there are; each comes after those that it refers to.
func tables() []table {
	return []table{
		{name: "organizations"},
		{name: "tokens"},
		{name: "clusters"},
		{name: "managed_runners"},
		{name: "runner_revisions"},
		{name: "runner_credentials"},
		{name: "request_ids"},
		{name: "audit_log", generated: "audit_id"},
		{name: "sandboxes"},
		{name: "sandbox_tags"},
		{name: "sandbox_volumes"},
	}
}

// Export writes everything that the database holds at one instant. The store
// goes on meanwhile. Format and Schema of the header are filled in.
func (s *Store) Export(ctx context.Context, header Header, to io.Writer) (rows int64, err error) {
	tx, err := s.read.BeginTx(ctx, &s.dialect.Snapshot)
	if err != nil {
		return 0, s.explain("export", err)
	}
	defer func() { _ = tx.Rollback() }()
	header.Format = archiveFormat
	if header.Schema, err = schemaVersion(ctx, tx); err != nil {
		return 0, s.explain("export", err)
	}
	compressed := gzip.NewWriter(to)
	lines := json.NewEncoder(compressed)
	if err := lines.Encode(header); err != nil {
		return 0, fmt.Errorf("export: %w", err)
	}
	for _, t := range tables() {
		n, err := t.export(ctx, tx, lines)
		if err != nil {
			return 0, s.explain("export "+t.name, err)
		}
		rows += n
	}
	if err := lines.Encode(row{Rows: &rows}); err != nil {
		return 0, fmt.Errorf("export: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return 0, fmt.Errorf("export: %w", err)
	}
	return rows, nil
}

func schemaVersion(ctx context.Context, tx *sql.Tx) (version int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT max(version_id) FROM goose_db_version WHERE is_applied").Scan(&version)
	return version, err
}

func (t table) export(ctx context.Context, tx *sql.Tx, lines *json.Encoder) (n int64, err error) {
	order := ""
	if t.generated != "" {
		order = " ORDER BY " + t.generated
	}
	found, err := tx.QueryContext(ctx, "SELECT * FROM "+t.name+order) //nolint:gosec // names are tables()'s
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	columns, err := found.Columns()
	if err != nil {
		return 0, err
	}
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for found.Next() {
		if err := found.Scan(into...); err != nil {
			return n, err
		}
		line := row{Table: t.name, Values: map[string]json.RawMessage{}}
		for i, column := range columns {
			if column == t.generated {
				continue
			}
			if line.Values[column], err = encodeValue(values[i]); err != nil {
				return n, fmt.Errorf("column %s: %w", column, err)
			}
		}
		if err := lines.Encode(line); err != nil {
			return n, err
		}
		n++
	}
	return n, found.Err()
}

// octets are bytes in an archive.
type octets struct {
	Base64 []byte `json:"base64"`
}

func encodeValue(value any) (json.RawMessage, error) {
	switch value := value.(type) {
	case nil, int64, string:
		return json.Marshal(value)
	case []byte:
		return json.Marshal(octets{notNil(value)})
	}
	return nil, fmt.Errorf("%T is not a type of the schema's", value)
}

func decodeValue(data json.RawMessage) (any, error) {
	switch {
	case string(data) == "null":
		return nil, nil
	case data[0] == '"':
		var text string
		err := json.Unmarshal(data, &text)
		return text, err
	case data[0] == '{':
		var value octets
		if err := json.Unmarshal(data, &value); err != nil {
			return nil, err
		}
		return notNil(value.Base64), nil
	}
	return strconv.ParseInt(string(data), 10, 64)
}

// Import fills an empty database with all that is in an archive, or changes
// nothing. accept sees the header before anything is written.
func (s *Store) Import(ctx context.Context, from io.Reader, accept func(Header) error) (rows int64, err error) {
	file := bufio.NewReader(from)
	compressed, err := gzip.NewReader(file)
	if err != nil {
		return 0, fmt.Errorf("import: not an archive: %w", err)
	}
	compressed.Multistream(false)
	lines := json.NewDecoder(bufio.NewReader(compressed))
	var header Header
	if err := lines.Decode(&header); err != nil || header.Format != archiveFormat {
		return 0, errors.Join(fmt.Errorf("import: not an archive: its format is %q and should be %q", header.Format, archiveFormat), err)
	}
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return 0, s.explain("import", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fits(ctx, tx, header); err != nil {
		return 0, s.explain("import", err)
	}
	if err := accept(header); err != nil {
		return 0, fmt.Errorf("import: %w", err)
	}
	if rows, err = fill(ctx, tx, lines); err != nil {
		return 0, s.explain("import", err)
	}
	if _, err := file.ReadByte(); !errors.Is(err, io.EOF) {
		return 0, errors.Join(errors.New("import: the archive is damaged: something comes after its end"), err)
	}
	return rows, s.explain("import", tx.Commit())
}

// fits says whether a database can take an archive with that header.
func fits(ctx context.Context, tx *sql.Tx, header Header) error {
	version, err := schemaVersion(ctx, tx)
	if err != nil {
		return err
	}
	if version != header.Schema {
		return fmt.Errorf("the archive was made by sandbar %s with schema %d, and this is schema %d: restore it with that version, and then let this one bring it up to date",
			header.Version, header.Schema, version)
	}
	var organizations int64
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM organizations").Scan(&organizations); err != nil {
		return err
	}
	if organizations > 0 {
		return ErrNotEmpty
	}
	return nil
}

// fill inserts the rows, and wants to see the count of them at the end.
func fill(ctx context.Context, tx *sql.Tx, lines *json.Decoder) (rows int64, err error) {
	into := map[string]*insertion{}
	for _, t := range tables() {
		insertion, err := prepareInsertion(ctx, tx, t)
		if err != nil {
			return 0, err
		}
		into[t.name] = insertion
	}
	for {
		var line row
		if err := lines.Decode(&line); err != nil {
			return 0, fmt.Errorf("the archive ends or is damaged after %d rows: %w", rows, err)
		}
		if line.Rows != nil {
			if *line.Rows != rows {
				return 0, fmt.Errorf("the archive is damaged: it has %d rows and should have %d", rows, *line.Rows)
			}
			// The checksum of all comes after the last row.
			if err := lines.Decode(&row{}); !errors.Is(err, io.EOF) {
				return 0, errors.Join(errors.New("the archive is damaged: it does not end where it should"), err)
			}
			return rows, nil
		}
		insertion, known := into[line.Table]
		if !known {
			return 0, fmt.Errorf("the archive is damaged: it has a table %q", line.Table)
		}
		if err := insertion.insert(ctx, line.Values); err != nil {
			return 0, fmt.Errorf("row %d, of %s: %w", rows+1, line.Table, err)
		}
		rows++
	}
}

// insertion puts rows into one table. Its statement ends with the transaction.
type insertion struct {
	columns   []string
	statement *sql.Stmt
}

func prepareInsertion(ctx context.Context, tx *sql.Tx, t table) (*insertion, error) {
	columns, err := columnsOf(ctx, tx, t)
	if err != nil {
		return nil, err
	}
	columns = slices.DeleteFunc(columns, func(name string) bool { return name == t.generated })
	marks := make([]string, len(columns))
	for i := range marks {
		marks[i] = "$" + strconv.Itoa(i+1)
	}
	statement, err := tx.PrepareContext(ctx, //nolint:gosec // names are the database's own
		"INSERT INTO "+t.name+" ("+strings.Join(columns, ", ")+") VALUES ("+strings.Join(marks, ", ")+")")
	if err != nil {
		return nil, err
	}
	return &insertion{columns: columns, statement: statement}, nil
}

func columnsOf(ctx context.Context, tx *sql.Tx, t table) (columns []string, err error) {
	found, err := tx.QueryContext(ctx, "SELECT * FROM "+t.name+" LIMIT 0") //nolint:gosec // names are tables()'s
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Err(), found.Close()) }()
	return found.Columns()
}

func (i *insertion) insert(ctx context.Context, values map[string]json.RawMessage) error {
	if len(values) != len(i.columns) {
		return fmt.Errorf("it has %d columns and should have %d", len(values), len(i.columns))
	}
	args := make([]any, len(i.columns))
	for at, column := range i.columns {
		data, given := values[column]
		if !given || len(data) == 0 {
			return fmt.Errorf("it has no column %s", column)
		}
		var err error
		if args[at], err = decodeValue(data); err != nil {
			return fmt.Errorf("column %s: %w", column, err)
		}
	}
	_, err := i.statement.ExecContext(ctx, args...)
	return err
}
