package apierr

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"pgregory.net/rapid"
)

const megabyte = 1 << 20

func TestAQuotedValueIsCutAndWhatToDoIsNot(t *testing.T) {
	long := strings.Repeat("x", megabyte)
	for name, text := range map[string]string{
		"of an error":      New(InvalidRequest, "%q is not a name; use letters", long).Error(),
		"of a violation":   Violated("f", "R", "%q is not a name; use letters", long).Description,
		"quoted elsewhere": Invalid(InvalidRequest, []Violation{{Field: "f", Description: fmt.Sprintf("%q is not a name; use letters", long)}}).Error(),
	} {
		if len(text) > 2048 || !strings.Contains(text, "x…") || !strings.HasSuffix(text, "is not a name; use letters") {
			t.Errorf("%s: %d bytes: %.200s", name, len(text), text)
		}
	}
	if got := New(InvalidRequest, "%q, %s, %5s, %d", "a\u202eb", "plain", "r", 7).Error(); got != `"a\u202eb", plain,     r, 7` {
		t.Errorf("short values are printed as %s", got)
	}
}

func TestAFieldOfAVeryLongNameIsCut(t *testing.T) {
	field := `env["` + strings.Repeat("é", megabyte) + `"].x`
	err := Connect(Invalid(InvalidRequest, []Violation{{Field: field, Description: "is wrong"}}))
	told := BadRequest(err).GetFieldViolations()
	if len(told) != 1 || len(told[0].GetField()) > maxField || !strings.HasSuffix(told[0].GetField(), `"].x`) {
		t.Errorf("%.300s", err)
	}
}

// TestEveryErrorFitsIntoTrailers: about 8 KiB are what gRPC clients take.
func TestEveryErrorFitsIntoTrailers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, size := rapid.IntRange(1, 2000).Draw(t, "violations"), rapid.IntRange(0, 5000).Draw(t, "size")
		violations := make([]Violation, n)
		for i := range violations {
			violations[i] = Violation{Field: fmt.Sprintf("spec.tags[%d]", i), Description: strings.Repeat("w", size), Reason: "RULE"}
		}
		err := Invalid(InvalidRequest, violations)
		var sent *connect.Error
		if !errors.As(Connect(err), &sent) {
			t.Fatalf("%T", err)
		}
		total := len(sent.Message())
		encoded := len(sent.Message())
		for _, detail := range sent.Details() {
			encoded += len(detail.Bytes()) + len(detail.Type())
		}
		total += base64.StdEncoding.EncodedLen(encoded)
		if total > 8<<10 {
			t.Errorf("%d bytes", total)
		}
		told := len(find(error(sent), func(*errdetails.BadRequest) bool { return true }).GetFieldViolations())
		if told < n && !strings.Contains(sent.Message(), "more") {
			t.Errorf("%d of %d are told, and the message does not say so", told, n)
		}
	})
}

func TestElidedTextIsValidAndWithinItsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, limit := rapid.String().Draw(t, "text"), rapid.IntRange(8, 64).Draw(t, "limit")
		got := elide(text, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Errorf("elide(%q, %d) = %q", text, limit, got)
		}
	})
}

func TestErrorsOfTheLibrariesGetTheReasonOfTheirCode(t *testing.T) {
	for code, want := range codeReasons {
		if got := ReasonOf(Connect(connect.NewError(code, errors.New("x")))); got != want {
			t.Errorf("%s: %q, want %s", code, got, want)
		}
		if want.Code() != code && code != connect.CodeUnknown {
			t.Errorf("%s has the code %s", want, want.Code())
		}
	}
	ready := New(StorageFull, "full").connect()
	if got := ReasonOf(Connect(ready)); got != StorageFull {
		t.Errorf("an error with a reason became %s", got)
	}
}
