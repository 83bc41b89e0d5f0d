package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNamed is how many members of a list a message names.
const maxNamed = 8

func quote(text string) string { return strconv.Quote(text) }

// list joins texts with commas; a long list ends with how many are left out.
func list(texts []string) string { return joinSome(texts, ", ") }

// alternatives joins texts that may hold commas themselves.
func alternatives(texts []string) string { return joinSome(texts, "; or ") }

func joinSome(texts []string, separator string) string {
	if len(texts) <= maxNamed {
		return strings.Join(texts, separator)
	}
	return strings.Join(texts[:maxNamed], separator) + fmt.Sprintf(" and %d more", len(texts)-maxNamed)
}
