package enginetest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// guestPath is where the guest finds itself inside a sandbox.
const guestPath = "/.sandbar/guest"

// sandbox speaks to the suite's guest.
type sandbox struct {
	engine engine.Engine
	id     string
}

// result is what became of a program in a sandbox.
type result struct {
	Output string `json:"output"`
	Code   int    `json:"code"`
	Error  string `json:"error"`
}

func (r result) ok() bool { return r.Code == 0 && r.Error == "" }

// call runs a probe of the guest's and fails only when the guest does not
// answer.
func (b *sandbox) call(t *testing.T, probe ...string) (result, error) {
	t.Helper()
	conn, err := b.engine.Dial(t.Context(), b.id)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	request := map[string]any{"argv": append([]string{guestPath}, probe...)}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return result{}, err
	}
	var r result
	err = json.NewDecoder(conn).Decode(&r)
	r.Output = strings.TrimSpace(r.Output)
	return r, err
}

// run is call for a guest that must answer.
func (b *sandbox) run(t *testing.T, probe ...string) result {
	t.Helper()
	r, err := b.call(t, probe...)
	if err != nil {
		t.Fatalf("%s: %q: %v", b.id, probe, err)
	}
	return r
}

// want runs a probe that must succeed and returns what it printed.
func (b *sandbox) want(t *testing.T, probe ...string) string {
	t.Helper()
	r := b.run(t, probe...)
	if !r.ok() {
		t.Errorf("%q failed: %+v", probe, r)
	}
	return r.Output
}

// refuse runs a probe that must fail, for one of the reasons given.
func (b *sandbox) refuse(t *testing.T, reasons []string, probe ...string) {
	t.Helper()
	r := b.run(t, probe...)
	if r.ok() {
		t.Errorf("%q succeeded: %s", probe, r.Output)
		return
	}
	for _, reason := range reasons {
		if strings.Contains(r.Output+r.Error, reason) {
			return
		}
	}
	t.Errorf("%q failed with %+v; want one of %q", probe, r, reasons)
}

// shutdown makes the guest end.
func (b *sandbox) shutdown(t *testing.T) {
	t.Helper()
	conn, err := b.engine.Dial(t.Context(), b.id)
	if err != nil {
		t.Fatalf("%s: shutdown: %v", b.id, err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, `{"shutdown":true}`); err != nil {
		t.Fatalf("%s: shutdown: %v", b.id, err)
	}
}
