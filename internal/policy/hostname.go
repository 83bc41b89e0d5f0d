package policy

import "strings"

// maxHostname is the longest name that DNS can hold, in bytes.
const maxHostname = 253

// hostnameProblem says what is wrong with a name that a rule grants: an exact
// host name, or one wildcard as its leftmost label. everything allows the bare
// "*" as well.
func hostnameProblem(text string, everything bool) string {
	if text == "*" {
		if everything {
			return ""
		}
		return `grants every name; only allowed_egress of a policy may say that. Write a name such as "example.com" or "*.example.com"`
	}
	if len(text) > maxHostname {
		return "is longer than 253 characters"
	}
	if strings.HasSuffix(text, ".") {
		return "must not end with a dot"
	}
	rest := strings.TrimPrefix(text, "*.")
	if strings.Contains(rest, "*") {
		return `may have one wildcard, as the whole leftmost label ("*.example.com")`
	}
	last := ""
	for label := range strings.SplitSeq(rest, ".") {
		if !isLabel(label) {
			return `is not a host name; write one such as "example.com" or "*.example.com" (international names in their xn-- form)`
		}
		last = label
	}
	// The last label of a name is never a number; that of an address is, in
	// decimal or, as some read it, in hexadecimal.
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(strings.ToLower(last), "0x") {
		return "is an address, not a host name; use cidr for addresses"
	}
	return ""
}

func isLabel(label string) bool {
	if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for _, c := range []byte(label) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// hostname is a name or pattern that was found to be well formed.
type hostname struct {
	text string // lower case
}

func newHostname(text string) hostname { return hostname{strings.ToLower(text)} }

// covers says whether every name that other stands for is one that h stands
// for. A wildcard stands for exactly one label.
func (h hostname) covers(other hostname) bool {
	if h.text == "*" || h.text == other.text {
		return true
	}
	parent, ok := strings.CutPrefix(h.text, "*.")
	if !ok {
		return false
	}
	_, rest, ok := strings.Cut(other.text, ".")
	return ok && rest == parent
}

// overlaps says whether some name is one that both stand for.
func (h hostname) overlaps(other hostname) bool {
	return h.covers(other) || other.covers(h)
}
