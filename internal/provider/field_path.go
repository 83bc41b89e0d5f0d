package provider

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
)

// step is one part of a field path: a name, or an index or key in brackets.
type step struct {
	name    string
	index   string
	indexed bool
	// raw is the step as the server wrote it, brackets included.
	raw string
}

// fieldSteps reads a field path as servers write them: "spec.overrides.env[\"A\"]",
// "policy.constraints.network.allowedEgress[0].cidr". Names become snake_case.
func fieldSteps(field string) []step {
	var steps []step
	for field != "" {
		switch field[0] {
		case '.':
			field = field[1:]
		case '[':
			one, ok := indexStep(field)
			if !ok {
				return steps
			}
			steps = append(steps, one)
			field = field[len(one.raw):]
		default:
			end := strings.IndexAny(field, ".[")
			if end < 0 {
				end = len(field)
			}
			steps = append(steps, step{name: snakeCase(field[:end]), raw: field[:end]})
			field = field[end:]
		}
	}
	return steps
}

// indexStep reads the brackets that text begins with. A quoted key may itself
// have brackets, since it is often the key that is wrong.
func indexStep(text string) (step, bool) {
	if quoted, err := strconv.QuotedPrefix(text[1:]); err == nil {
		end := 1 + len(quoted)
		key, err := strconv.Unquote(quoted)
		if err != nil || end == len(text) || text[end] != ']' {
			return step{}, false
		}
		return step{index: key, indexed: true, raw: text[:end+1]}, true
	}
	inside, _, found := strings.Cut(text[1:], "]")
	return step{index: inside, indexed: true, raw: "[" + inside + "]"}, found
}

// spell writes steps as a configuration has them. Only the first known ones
// are of the schema; what is below them keeps the server's spelling, because
// it is inside a value.
func spell(steps []step, known int) string {
	var out strings.Builder
	for i, one := range steps {
		switch {
		case one.indexed:
			out.WriteString(one.raw)
			continue
		case out.Len() > 0:
			out.WriteByte('.')
		}
		if i < known {
			out.WriteString(one.name)
		} else {
			out.WriteString(one.raw)
		}
	}
	return out.String()
}

func snakeCase(name string) string {
	var out strings.Builder
	for i, letter := range name {
		if unicode.IsUpper(letter) && i > 0 {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(letter))
	}
	return out.String()
}

// descend goes one step down from a level of the schema (attributes, or one
// attribute); false when the schema ends here.
func descend(level any, s step) (next func(path.Path) path.Path, deeper any, ok bool) {
	if !s.indexed {
		var members attributes
		switch l := level.(type) {
		case attributes:
			members = l
		case schema.SingleNestedAttribute:
			members = l.Attributes
		}
		member, known := members[s.name]
		return func(p path.Path) path.Path { return p.AtName(s.name) }, member, known
	}
	number, err := strconv.Atoi(s.index)
	switch l := level.(type) {
	case schema.ListNestedAttribute:
		return func(p path.Path) path.Path { return p.AtListIndex(number) }, l.NestedObject.Attributes, err == nil
	case schema.ListAttribute:
		return func(p path.Path) path.Path { return p.AtListIndex(number) }, nil, err == nil
	case schema.MapAttribute:
		return func(p path.Path) path.Path { return p.AtMapKey(s.index) }, nil, true
	}
	return nil, nil, false
}
