package apierr

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateDocs = flag.Bool("update", false, "write docs/errors.md")

const errorsPage = `# Errors

Every error carries a google.rpc.ErrorInfo of domain ` + "`" + Domain + "`" + ` with one of these
reasons. What is wrong with a request comes as google.rpc.BadRequest, one field
violation for each rule that is broken. REST answers with a google.rpc.Status in
JSON. Values that an error quotes are cut when they are long, and of very many
violations the last are only counted. The exit code is what the command line ends with. This page is printed
from the code: ` + "`go test ./internal/apierr -update`" + `.

| reason | code | HTTP status of REST | exit code |
|---|---|---|---|
`

func TestErrorsPageIsFresh(t *testing.T) {
	var page strings.Builder
	page.WriteString(errorsPage)
	for _, reason := range slices.Sorted(maps.Keys(table)) {
		fmt.Fprintf(&page, "| `%s` | %s | %d | %d |\n", reason, strings.ToUpper(table[reason].code.String()), reason.HTTPStatus(), table[reason].exit)
	}
	const path = "../../docs/errors.md"
	if *updateDocs {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(have)); diff != "" {
		t.Errorf("docs/errors.md is stale; run go test ./internal/apierr -update (-want +got):\n%s", diff)
	}
}
