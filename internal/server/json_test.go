package server

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/auth"
)

// post sends a Connect call as JSON, as a client without the schema would.
func (w *world) post(t *testing.T, secret auth.Secret, procedure, contentType, body string) (status int, answer map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL()+procedure, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Authorization", "Bearer "+secret.Reveal())
	response, err := w.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return response.StatusCode, answer
}

func TestConnectJSONRefusesWhatTheContractDoesNotHave(t *testing.T) {
	w := start(t, nil)
	const create = sandboxv1connect.RunnerManagementServiceCreateManagedRunnerProcedure
	for name, test := range map[string]struct{ contentType, body, names string }{
		"a misspelt field":          {"application/json", `{"runnerId":"r"}`, "runnerId"},
		"a misspelt rule inside":    {"application/json", `{"managedRunner":{"policy":{"constraints":{"resources":{"maxCpus":"1"}}}}}`, "maxCpus"},
		"an unknown value":          {"application/json", `{"managedRunner":{"spec":{"releaseChannel":"RELEASE_CHANNEL_NIGHTLY"}}}`, "RELEASE_CHANNEL_NIGHTLY"},
		"with the charset named":    {"application/json; charset=utf-8", `{"runnerId":"r"}`, "runnerId"},
		"nothing where a body is":   {"application/json", ``, "{}"},
		"something that is no JSON": {"application/json", `{`, "JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := w.post(t, w.admin, create, test.contentType, test.body)
			message, _ := answer["message"].(string)
			if status != http.StatusBadRequest || answer["code"] != "invalid_argument" || !strings.Contains(message, test.names) {
				t.Errorf("%d %v; want invalid_argument naming %s", status, answer, test.names)
			}
		})
	}
	const list = sandboxv1connect.RunnerManagementServiceListManagedRunnersProcedure
	for name, body := range map[string]string{"camelCase": `{"pageSize":1}`, "snake_case": `{"page_size":1}`, "nothing": `{}`} {
		if status, answer := w.post(t, w.admin, list, "application/json", body); status != http.StatusOK {
			t.Errorf("%s: %d %v", name, status, answer)
		}
	}
}
