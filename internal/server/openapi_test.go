package server

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/sandbar-project/sandbar/internal/auth"
)

// The description that is served is valid OpenAPI, and has the methods that the
// server has, no more and no less.
func TestOpenAPIDescribesTheRESTSurface(t *testing.T) {
	w := start(t, nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+openAPIPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := w.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	document, err := openapi3.NewLoader().LoadFromIoReader(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := document.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	var described []string
	for path, item := range document.Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+canonical(path))
		}
	}
	served := slices.Collect(maps.Keys(restMethods(t)))
	slices.Sort(described)
	slices.Sort(served)
	if diff := cmp.Diff(served, slices.Compact(described)); diff != "" {
		t.Errorf("what is described differs from what is served (-served +described):\n%s", diff)
	}
}

// restMethods are the methods of REST that the .proto files give the services.
func restMethods(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, name := range auth.Services() {
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		methods := descriptor.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			rule, _ := proto.GetExtension(methods.Get(i).Options(), annotations.E_Http).(*annotations.HttpRule)
			for _, rule := range append(rule.GetAdditionalBindings(), rule) {
				if method, path := methodAndPath(rule); method != "" {
					found[method+" "+canonical(path)] = true
				}
			}
		}
	}
	return found
}

func methodAndPath(rule *annotations.HttpRule) (method, path string) {
	switch pattern := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, pattern.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, pattern.Post
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, pattern.Patch
	case *annotations.HttpRule_Put:
		return http.MethodPut, pattern.Put
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, pattern.Delete
	}
	return "", ""
}

var parameter = regexp.MustCompile(`\{[^}]*\}`)

// canonical is a path without its parameters' names, which the two spell
// differently.
func canonical(path string) string { return parameter.ReplaceAllString(strings.TrimSpace(path), "{}") }
