package pagetoken_test

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandbar-project/sandbar/internal/pagetoken"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestATokenLeadsBackToItsKeyInItsOwnListOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "key")
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		list := pagetoken.List{"ListThings", a, []string{b}}
		token := list.Token(key)
		if got, ok := list.Key(token); !ok || !bytes.Equal(got, key) {
			t.Errorf("Key(%q) = %q, %v; want %q", token, got, ok, key)
		}
		for name, other := range map[string]pagetoken.List{
			"another method": {"ListOthers", a, []string{b}},
			"another filter": {"ListThings", a + "x", []string{b}},
			"a moved border": {"ListThings" + a, []string{b}},
		} {
			if _, ok := other.Key(token); ok {
				t.Errorf("the token is taken for %s", name)
			}
		}
	})
}

func TestWhatNoListHasGivenOutIsRefused(t *testing.T) {
	list := pagetoken.List{"ListThings"}
	token := list.Token([]byte("runner-7"))
	for _, text := range []string{
		"garbage", "?", "cnVubmVyLTc", "AAAAAAAAAAA", token[:len(token)-1], token + "A", token + "=", " " + token, "A" + token[1:],
	} {
		if key, ok := list.Key(text); ok && text != token {
			t.Errorf("%q leads to %q", text, key)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		if text := rapid.String().Draw(t, "text"); text != token {
			if key, ok := list.Key(text); ok {
				t.Errorf("%q leads to %q", text, key)
			}
		}
	})
}
