package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// maxListed is how many members of a list a message names.
const maxListed = 8

func quote(text string) string { return strconv.Quote(text) }

// list joins texts with commas; a long list ends with how many are left out.
func list(texts []string) string { return joinSome(texts, ", ") }

// alternatives joins texts that may hold commas themselves.
func alternatives(texts []string) string { return joinSome(texts, "; or ") }

func joinSome(texts []string, separator string) string {
	if len(texts) <= maxListed {
		return strings.Join(texts, separator)
	}
	return strings.Join(texts[:maxListed], separator) + fmt.Sprintf(" and %d more", len(texts)-maxListed)
}
