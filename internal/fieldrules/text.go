package fieldrules

import (
	"strings"
	"unicode"
)

// Hidden finds the first character of a text that a person does not see but
// that changes what is seen: a control character, a control of the direction of
// writing (Unicode's Bidi_Control), or a separator of lines or paragraphs.
// Names and labels that are shown beside others must have none.
func Hidden(text string) (character rune, found bool) {
	i := strings.IndexFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
	})
	if i < 0 {
		return 0, false
	}
	for _, r := range text[i:] {
		return r, true
	}
	return 0, false
}
