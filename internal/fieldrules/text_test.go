package fieldrules_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbar-project/sandbar/internal/fieldrules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHiddenCharactersAreFound(t *testing.T) {
	for text, want := range map[string]rune{
		"a\x00b": 0, "a\nb": '\n', "\x1b[31m": 0x1b, "\u0085": 0x85, "x\u202egpj.exe": 0x202e, "\u2066": 0x2066, "\u200f": 0x200f,
		"\u2028": 0x2028, "\u2029": 0x2029,
	} {
		if got, found := fieldrules.Hidden(text); !found || got != want {
			t.Errorf("Hidden(%q) = %U, %v; want %U", text, got, found, want)
		}
	}
	for _, text := range []string{"", "plain", "two words", "größe", "샌드박스", "שלום", "👩‍🔬", "a.b_c-d"} {
		if got, found := fieldrules.Hidden(text); found {
			t.Errorf("Hidden(%q) = %U", text, got)
		}
	}
}
