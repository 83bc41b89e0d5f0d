package output

import (
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// notSet is what a field without a value says in a description.
const notSet = "(not set)"

// labelWidth aligns the values of a description.
const labelWidth = 38

// Text is a description: labelled values in nested sections.
type Text struct {
	lines  strings.Builder
	indent int
}

// String is the text so far.
func (t *Text) String() string { return t.lines.String() }

// Line adds one as it is.
func (t *Text) Line(text string) {
	t.lines.WriteString(strings.Repeat("  ", t.indent) + printable(text) + "\n")
}

// Field adds a labelled value; an empty one is shown as not set.
func (t *Text) Field(label, value string) {
	if value == "" || value == Unset {
		value = notSet
	}
	width := max(labelWidth-2*t.indent, len(label)+2)
	t.Line(label + ":" + strings.Repeat(" ", width-len(label)-1) + value)
}

// List adds a labelled list, one a line; an empty one is shown as not set.
func (t *Text) List(label string, values []string) {
	if len(values) == 0 {
		t.Field(label, "")
		return
	}
	t.Section(label, func() {
		for _, value := range values {
			t.Line("- " + value)
		}
	})
}

// Section adds a heading; what body adds stands below it.
func (t *Text) Section(label string, body func()) {
	t.Line(label + ":")
	t.indent++
	body()
	t.indent--
}

// Message adds a labelled message in YAML.
func (t *Text) Message(label string, message proto.Message) {
	raw, err := protojson.Marshal(message)
	if err == nil {
		raw, err = yaml.JSONToYAML(raw)
	}
	if err != nil {
		t.Field(label, "cannot be shown: "+err.Error())
		return
	}
	t.Section(label, func() {
		for line := range strings.Lines(string(raw)) {
			t.Line(strings.TrimSuffix(line, "\n"))
		}
	})
}

// printable replaces what could steer a terminal: names and messages come from
// other people.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}
