package server

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

const runnersPath = "/v1/sandbox/managedRunners"

// problem is what the body of a google.rpc.Status says.
type problem struct {
	code    connect.Code
	message string
	// reason is of an ErrorInfo of our domain.
	reason string
	// fields are what the violations say by field.
	fields map[string]string
}

func problemOf(t *testing.T, body map[string]any) problem {
	t.Helper()
	p := problem{fields: map[string]string{}}
	code, _ := body["code"].(float64)
	p.code = connect.Code(code)
	p.message, _ = body["message"].(string)
	details, _ := body["details"].([]any)
	for _, detail := range details {
		detail, _ := detail.(map[string]any)
		if detail["domain"] == apierr.Domain {
			p.reason, _ = detail["reason"].(string)
		}
		violations, _ := detail["fieldViolations"].([]any)
		for _, violation := range violations {
			violation, _ := violation.(map[string]any)
			field, _ := violation["field"].(string)
			p.fields[field], _ = violation["description"].(string)
		}
	}
	return p
}

// refused makes a REST call and wants it refused with that status and reason.
func (w *world) refused(t *testing.T, method, path, body string, status int, reason apierr.Reason) problem {
	t.Helper()
	got, decoded := w.rest(t, w.admin, method, path, body)
	p := problemOf(t, decoded)
	if got != status || p.reason != string(reason) || p.code != reason.Code() || p.message == "" {
		t.Errorf("%s %.100s: %d %v; want %d, %s", method, path, got, decoded, status, reason)
	}
	return p
}

func TestAQueryParameterThatIsWrongIsNamedWithWhatIsExpected(t *testing.T) {
	w := start(t, nil)
	for query, want := range map[string]map[string][]string{
		"pageToken=garbage":      {"page_token": {"without"}},
		"pageSize=-1":            {"page_size": {"0"}},
		"page_size=-1":           {"page_size": {"0"}},
		"pageSize=many":          {"page_size": {`"many"`, "whole number"}},
		"pageSize=":              {"page_size": {"whole number"}},
		"pageSize=99999999999":   {"page_size": {"whole number"}},
		"pageSizes=1":            {"pageSizes": {"pageSize", "pageToken", "clusterId", "zone", "runnerGroupId"}},
		"a=1&b=2&pageSize=x":     {"a": nil, "b": nil, "page_size": nil},
		"zone=a&zone=b":          {"zone": {"once"}},
		"pageSize=1&page_size=1": {"page_size": {"once"}},
		"zone.x=1":               {"zone.x": {"known are"}},
	} {
		p := w.refused(t, http.MethodGet, runnersPath+"?"+query, "", http.StatusBadRequest, apierr.InvalidRequest)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(p.fields))); diff != "" {
			t.Errorf("%s: fields differ (-want +got):\n%s", query, diff)
		}
		for field, texts := range want {
			for _, text := range texts {
				if !strings.Contains(p.fields[field], text) {
					t.Errorf("%s: %s: %q does not say %q", query, field, p.fields[field], text)
				}
			}
		}
	}
	w.refused(t, http.MethodGet, runnersPath+"?pageSize=1;zone=x", "", http.StatusBadRequest, apierr.InvalidRequest)
	p := w.refused(t, http.MethodPost, runnersPath+"/r:applyAvailableUpdate?runnerId=x", "", http.StatusBadRequest, apierr.InvalidRequest)
	if !strings.Contains(p.fields["runnerId"], "none") {
		t.Errorf("a parameter of the path in the query: %v", p)
	}
	for query, text := range map[string]string{"state=STATE_NEW": "STATE_RUNNING", "state=99": "STATE_RUNNING", "showTerminated=yes": "true or false"} {
		p := w.refused(t, http.MethodGet, "/v1/sandboxes?"+query, "", http.StatusBadRequest, apierr.InvalidRequest)
		if !strings.Contains(p.message, text) {
			t.Errorf("%s: %s", query, p.message)
		}
	}
	if status, body := w.rest(t, w.admin, http.MethodGet, "/admin/v1/clusters?pageSize=-1", ""); status != http.StatusBadRequest {
		t.Errorf("a list that has no pages: %d %v", status, body)
	}
}

func TestListsRefuseNegativePageSizesInEveryProtocol(t *testing.T) {
	w := start(t, nil)
	for name, options := range protocols {
		client := sandboxv1connect.NewRunnerManagementServiceClient(http2(t, &http.Transport{}), w.URL(), append(options, bearer(w.admin))...)
		_, err := client.ListManagedRunners(t.Context(), &sandboxv1.ListManagedRunnersRequest{PageSize: -1})
		if violations := apierr.BadRequest(err).GetFieldViolations(); apierr.ReasonOf(err) != apierr.InvalidRequest || len(violations) != 1 || violations[0].GetField() != "page_size" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheQueryReachesTheMethodInBothSpellings(t *testing.T) {
	w := start(t, nil)
	w.create(t, w.wish())
	for _, query := range []string{"pageSize=1&zone=ZONE-a", "page_size=1&runner_group_id=default", "clusterId=local", "pageToken="} {
		status, body := w.rest(t, w.admin, http.MethodGet, runnersPath+"?"+query, "")
		runners, _ := body["managedRunners"].([]any)
		if status != http.StatusOK || len(runners) != 1 {
			t.Errorf("%s: %d %v", query, status, body)
		}
	}
	if status, body := w.rest(t, w.admin, http.MethodGet, runnersPath+"?zone=elsewhere", ""); status != http.StatusOK || len(body) != 0 {
		t.Errorf("a filter for another zone: %d %v", status, body)
	}
	if status, body := w.rest(t, w.admin, http.MethodDelete, runnersPath+"/none?allowMissing=true", ""); status != http.StatusOK {
		t.Errorf("allowMissing: %d %v", status, body)
	}
}

func TestRESTTakesMasksInBothSpellings(t *testing.T) {
	w := start(t, nil)
	w.create(t, w.wish())
	for mask, body := range map[string]string{
		"display_name":                                   `{"displayName":"a"}`,
		"displayName":                                    `{"display_name":"b"}`,
		"displayName,spec.release_channel":               `{"displayName":"c","spec":{"releaseChannel":"RELEASE_CHANNEL_RAPID"}}`,
		"display_name,%20identity.runnerGroupId":         `{"displayName":"d","identity":{"runnerGroupId":"g"}}`,
		"spec.maintenancePolicy,spec.maintenance_policy": `{}`,
	} {
		for _, name := range []string{"updateMask", "update_mask"} {
			status, answer := w.rest(t, w.admin, http.MethodPatch, runnersPath+"/runner-1?"+name+"="+mask, body)
			if status != http.StatusOK {
				t.Errorf("%s=%s: %d %v", name, mask, status, answer)
			}
		}
	}
}

func TestAMaskThatIsRefusedSaysWhatMayBeNamedInEveryProtocol(t *testing.T) {
	w := start(t, nil)
	w.create(t, w.wish())
	for mask, quoted := range map[string]string{"*": `"*"`, "displayNaem": `"displayNaem"`, "create_time": `"create_time"`, "": ""} {
		says := func(protocol, text string) {
			t.Helper()
			if !strings.Contains(text, quoted) || !strings.Contains(text, "display_name, identity.runner_group_id, policy, spec.") {
				t.Errorf("%s, mask %q: %s", protocol, mask, text)
			}
		}
		p := w.refused(t, http.MethodPatch, runnersPath+"/runner-1?updateMask="+mask, `{"displayName":"x"}`, http.StatusBadRequest, apierr.InvalidRequest)
		says("REST", p.fields["update_mask"])
		status, answer := w.post(t, w.admin, sandboxv1connect.RunnerManagementServiceUpdateManagedRunnerProcedure, "application/json",
			`{"runnerId":"runner-1","managedRunner":{"displayName":"x"},"updateMask":"`+mask+`"}`)
		text, _ := answer["message"].(string)
		if status != http.StatusBadRequest {
			t.Errorf("Connect as JSON: %d %v", status, answer)
		}
		says("Connect as JSON", text)
		for name, options := range protocols {
			if name == "Connect, JSON" {
				continue // Its client writes no mask that protobuf's JSON refuses.
			}
			client := sandboxv1connect.NewRunnerManagementServiceClient(http2(t, &http.Transport{}), w.URL(), append(options, bearer(w.admin))...)
			_, err := client.UpdateManagedRunner(t.Context(), &sandboxv1.UpdateManagedRunnerRequest{
				RunnerId: "runner-1", ManagedRunner: &sandboxv1.ManagedRunner{DisplayName: "x"},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: strings.FieldsFunc(mask, func(r rune) bool { return r == ',' })},
			})
			if violations := apierr.BadRequest(err).GetFieldViolations(); len(violations) == 1 && violations[0].GetField() == "update_mask" {
				says(name, violations[0].GetDescription())
			} else {
				t.Errorf("%s, mask %q: %v", name, mask, err)
			}
		}
	}
}

func TestConnectJSONTakesMasksInBothSpellings(t *testing.T) {
	w := start(t, nil)
	w.create(t, w.wish())
	const update = sandboxv1connect.RunnerManagementServiceUpdateManagedRunnerProcedure
	for _, mask := range []string{
		`"updateMask":"displayName"`, `"update_mask":"display_name"`, `"updateMask" : "display_name,spec.tenantMetrics"`,
	} {
		status, answer := w.post(t, w.admin, update, "application/json", ` {"runnerId":"runner-1",`+mask+`,"managedRunner":{"displayName":"é\u00e9 \"x\""}} `)
		if status != http.StatusOK || answer["displayName"] != `éé "x"` {
			t.Errorf("%s: %d %v", mask, status, answer)
		}
	}
	for name, body := range map[string]string{
		"twice":              `{"updateMask":"policy","update_mask":"policy"}`,
		"no text":            `{"updateMask":["policy"]}`,
		"null":               `{"runnerId":"runner-1","managedRunner":{},"updateMask":null}`,
		"a field of no kind": `{"updateMask":"policy","nothing":1}`,
		"another twice":      `{"runnerId":"a","updateMask":"policy","runnerId":"b"}`,
		"more than one":      `{"updateMask":"policy"}{"runnerId":"a"}`,
		"cut off":            `{"updateMask":"policy"`,
		"no object":          `["updateMask"]`,
	} {
		if status, answer := w.post(t, w.admin, update, "application/json", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %v", name, status, answer)
		}
	}
}

func TestEveryRESTErrorHasAReason(t *testing.T) {
	w := start(t, nil)
	w.refused(t, http.MethodGet, "/v1/nothing", "", http.StatusNotFound, apierr.PathNotFound)
	w.refused(t, http.MethodGet, "/nothing", "", http.StatusNotFound, apierr.PathNotFound)
	p := w.refused(t, http.MethodPut, runnersPath, "{}", http.StatusMethodNotAllowed, apierr.MethodNotAllowed)
	if !strings.Contains(p.message, "GET") || !strings.Contains(p.message, "POST") {
		t.Errorf("the methods that are allowed are not named: %s", p.message)
	}
	for name, body := range map[string]string{
		"an unknown value":   `{"spec":{"releaseChannel":"NIGHTLY"}}`,
		"a bad number":       `{"policy":{"constraints":{"resources":{"maxGpuCount":"many"}}}}`,
		"a number too large": `{"spec":{"overrides":{"scaling":{"minReplicas":99999999999}}}}`,
		"an unknown field":   `{"nothing":1}`,
		"no JSON":            `{`,
	} {
		if p := w.refused(t, http.MethodPost, runnersPath, body, http.StatusBadRequest, apierr.InvalidRequest); !strings.Contains(p.message, "JSON") {
			t.Errorf("%s: %s", name, p.message)
		}
	}
	w.refused(t, http.MethodDelete, runnersPath+"/r?allowMissing=true", `{"x":1}`, http.StatusBadRequest, apierr.InvalidRequest)
	w.refused(t, http.MethodGet, "/v1/settings/secretStores", "", http.StatusNotImplemented, apierr.NotImplemented)
	if p := w.refused(t, http.MethodPost, "/v1/sandboxes", `{"spec":{"`+strings.Repeat("x", megabyte)+`":1}}`, http.StatusBadRequest, apierr.InvalidRequest); len(p.message) > 4096 {
		t.Errorf("the message has %d bytes", len(p.message))
	}
}

func TestRESTRefusesWhatIsNoText(t *testing.T) {
	w := start(t, nil)
	for _, path := range []string{"/v1/sandboxes/%00", "/v1/sandboxes/%ff", "/v1/sandboxes?tags=%00", runnersPath + "?zone=%ff", "/admin/v1/clusters/a%00b"} {
		w.refused(t, http.MethodGet, path, "", http.StatusBadRequest, apierr.InvalidRequest)
	}
}

func TestAPasswordOfAMirrorDoesNotBelongOnTheCommandLine(t *testing.T) {
	_, err := registryMirrors([]string{"docker.io=http://user:hidden@127.0.0.1:5000"})
	if err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("registryMirrors = %v; want a refusal without the password", err)
	}
}

const megabyte = 1 << 20

// send makes a request with a head of one's own.
func (w *world) send(t *testing.T, method, path string, body io.Reader, header map[string]string) (*http.Response, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+w.admin.Reveal())
	for key, value := range header {
		request.Header.Set(key, value)
	}
	response, err := w.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response, decodeBody(t, response)
}

func TestMediaTypesThatAreNotUnderstoodAreRefusedWithAReason(t *testing.T) {
	w := start(t, nil)
	for _, path := range []string{runnersPath, sandboxv1connect.RunnerManagementServiceListManagedRunnersProcedure} {
		for _, media := range []string{"text/plain", "application/xml"} {
			response, body := w.send(t, http.MethodPost, path, strings.NewReader("{}"), map[string]string{"Content-Type": media})
			p := problemOf(t, body)
			if response.StatusCode != http.StatusUnsupportedMediaType || p.reason != string(apierr.UnsupportedMediaType) || !strings.Contains(p.message, "application/json") {
				t.Errorf("%s, %s: %d %v", path, media, response.StatusCode, body)
			}
		}
	}
	response, body := w.send(t, http.MethodGet, sandboxv1connect.RunnerManagementServiceListManagedRunnersProcedure, nil, nil)
	if p := problemOf(t, body); response.StatusCode != http.StatusMethodNotAllowed || p.reason != string(apierr.MethodNotAllowed) || response.Header.Get("Allow") != "POST" {
		t.Errorf("GET of a procedure: %d %v", response.StatusCode, body)
	}
	response, body = w.send(t, http.MethodPost, sandboxv1connect.SandboxServiceStreamExecProcedure, strings.NewReader(""), map[string]string{"Content-Type": "application/connect+json"})
	if p := problemOf(t, body); response.StatusCode != http.StatusHTTPVersionNotSupported || p.reason != string(apierr.HTTPVersionNotSupported) {
		t.Errorf("StreamExec over HTTP/1: %d %v", response.StatusCode, body)
	}
}

// zeros is a body of JSON that does not end before n bytes.
func zeros(n int64) io.Reader {
	return io.MultiReader(strings.NewReader(`{"content":"`), io.LimitReader(repeated('A'), n), strings.NewReader(`"}`))
}

type repeated byte

func (r repeated) Read(data []byte) (int, error) {
	for i := range data {
		data[i] = byte(r)
	}
	return len(data), nil
}

func TestABodyOverTheLimitIsRefusedAsTooLarge(t *testing.T) {
	w := start(t, nil)
	const path = "/v1/sandboxes/sb-1:writeFile"
	want := func(name string, response *http.Response, p problem) {
		t.Helper()
		// The words by which clients know to stream.
		if p.reason != string(apierr.RequestTooLarge) || !strings.Contains(p.message, "message") || !strings.Contains(p.message, "larger than max") {
			t.Errorf("%s: %d %v", name, response.StatusCode, p)
		}
	}
	response, body := w.send(t, http.MethodPost, path, zeros(testLimit+1), map[string]string{"Content-Type": "application/json"})
	want("REST, of unknown length", response, problemOf(t, body))
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("REST answers %d", response.StatusCode)
	}
	response, body = w.send(t, http.MethodPost, sandboxv1connect.SandboxServiceWriteFileProcedure, zeros(testLimit+1), map[string]string{"Content-Type": "application/json"})
	message, _ := body["message"].(string)
	want("Connect", response, problem{message: message, reason: connectReason(body)})
	client := w.sandboxes(http2(t, &http.Transport{}), w.user, connect.WithGRPC())
	_, err := client.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: "sb-1", Path: "/f", Content: make([]byte, testLimit+1)})
	if connect.CodeOf(err) != connect.CodeResourceExhausted || apierr.ReasonOf(err) != apierr.RequestTooLarge || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("gRPC: %v (%s)", err, apierr.ReasonOf(err))
	}
}
