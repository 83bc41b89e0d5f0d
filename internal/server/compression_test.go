package server

import (
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
)

func TestOnlyLargeAnswersAreCompressed(t *testing.T) {
	w := start(t, nil)
	encoding := func() string {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			w.URL()+sandboxv1connect.RunnerManagementServiceListManagedRunnersProcedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept-Encoding", "gzip")
		request.Header.Set("Authorization", "Bearer "+w.admin.Reveal())
		response, err := w.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("status %d", response.StatusCode)
		}
		return response.Header.Get("Content-Encoding")
	}
	if got := encoding(); got != "" {
		t.Errorf("an empty list is encoded as %q", got)
	}
	runner := &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{RunnerId: "runner-1", Zone: "zone-a", ClusterId: w.cluster.ClusterID},
		Policy:   &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{Image: &sandboxv1.ImageConstraints{}}},
	}
	for range minCompressedBytes / 10 {
		runner.Policy.Constraints.Image.AllowedImages = append(runner.Policy.Constraints.Image.AllowedImages, "registry.example.com/a/b")
	}
	if _, err := w.runners(w.admin).CreateManagedRunner(t.Context(), &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: runner}); err != nil {
		t.Fatal(err)
	}
	if got := encoding(); got != "gzip" {
		t.Errorf("a list of more than %d bytes is encoded as %q, expected gzip", minCompressedBytes, got)
	}
}

// A client that compresses is understood, and hears back uncompressed.
func TestClientsMayCompress(t *testing.T) {
	w := start(t, nil)
	for _, protocol := range []connect.ClientOption{connect.WithClientOptions(), connect.WithGRPC(), connect.WithGRPCWeb()} {
		client := w.runners(w.admin, protocol, connect.WithSendGzip())
		if _, err := client.ListManagedRunners(t.Context(), &sandboxv1.ListManagedRunnersRequest{}); err != nil {
			t.Error(err)
		}
	}
}
