// Package output prints what commands answer: as an aligned table for people,
// as JSON or YAML for programs. No command formats its answer elsewhere.
//
// JSON is that of the REST API (camelCase, RFC 3339 times), so that what a
// script learns from one holds for the other.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// Format is how an answer is written. It is a flag value.
type Format string

// The formats.
const (
	FormatTable Format = "table"
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
)

// Formats lists them, for help and completion.
func Formats() []string {
	return []string{string(FormatTable), string(FormatJSON), string(FormatYAML)}
}

// String is part of pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type is part of pflag.Value.
func (f *Format) Type() string { return strings.Join(Formats(), "|") }

// Set is part of pflag.Value.
func (f *Format) Set(text string) error {
	for _, known := range Formats() {
		if text == known {
			*f = Format(text)
			return nil
		}
	}
	return fmt.Errorf("it is one of %s", strings.Join(Formats(), ", "))
}

// Table is rows under headings.
type Table struct {
	Headings []string
	Rows     [][]string
}

// Print writes message as JSON or YAML, or else what table makes of it.
func Print(w io.Writer, format Format, message proto.Message, table func() Table) error {
	switch format {
	case FormatJSON:
		return printJSON(w, message)
	case FormatYAML:
		return printYAML(w, message)
	default:
		return table().write(w)
	}
}

// PrintText is Print for answers that read better as text than as a table.
func PrintText(w io.Writer, format Format, message proto.Message, text func(io.Writer) error) error {
	switch format {
	case FormatJSON:
		return printJSON(w, message)
	case FormatYAML:
		return printYAML(w, message)
	default:
		return text(w)
	}
}

func (t Table) write(w io.Writer) error {
	aligned := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{t.Headings}, t.Rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		// The last cell ends without a tab, so that no line has trailing blanks.
		if _, err := fmt.Fprintln(aligned, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return aligned.Flush()
}

func printJSON(w io.Writer, message proto.Message) error {
	raw, err := protojson.Marshal(message)
	if err != nil {
		return fmt.Errorf("write the answer as JSON: %w", err)
	}
	// protojson varies its white space on purpose; a fixed form can be diffed.
	var indented bytes.Buffer
	if err := json.Indent(&indented, raw, "", "  "); err != nil {
		return fmt.Errorf("write the answer as JSON: %w", err)
	}
	indented.WriteByte('\n')
	_, err = indented.WriteTo(w)
	return err
}

func printYAML(w io.Writer, message proto.Message) error {
	raw, err := protojson.Marshal(message)
	if err != nil {
		return fmt.Errorf("write the answer as YAML: %w", err)
	}
	text, err := yaml.JSONToYAML(raw)
	if err != nil {
		return fmt.Errorf("write the answer as YAML: %w", err)
	}
	_, err = w.Write(text)
	return err
}

// PrintSecret writes a secret alone on w, so that it can be captured, and what
// there is to say about it on notes; as JSON or YAML, message carries it.
func PrintSecret(w, notes io.Writer, format Format, message proto.Message, secret, note string) error {
	return PrintText(w, format, message, func(w io.Writer) error {
		if _, err := fmt.Fprintln(notes, note); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, secret)
		return err
	})
}
