package enginetest

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Image makes an image for this machine with one layer for each list of
// entries; File makes an entry that has content.
func Image(t testing.TB, layers ...[]tar.Header) v1.Image {
	t.Helper()
	image := empty.Image
	config := &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: v1.Config{Entrypoint: []string{"/entry"}, Cmd: []string{"argument"}, Env: []string{"A=b"}, WorkingDir: "/work", User: "1:2"},
		RootFS: v1.RootFS{Type: "layers"},
	}
	image, err := mutate.ConfigFile(image, config)
	if err != nil {
		t.Fatal(err)
	}
	for _, entries := range layers {
		layer, err := tarball.LayerFromOpener(opener(t, entries))
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	return image
}

// File is an entry for Image: a regular file.
func File(path, content string) tar.Header {
	return tar.Header{
		Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(content)),
		PAXRecords: map[string]string{contentRecord: content},
	}
}

// contentRecord carries a file's content in its header until it is written.
const contentRecord = "SANDBAR.content"

func opener(t testing.TB, entries []tar.Header) tarball.Opener {
	t.Helper()
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, header := range entries {
		content := header.PAXRecords[contentRecord]
		header.PAXRecords = nil
		if err := archive.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
}

// Registry serves images on loopback until the end of the test and returns its
// "host:port".
func Registry(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// Push puts an image, or an index, into a registry.
func Push(t testing.TB, reference string, what remote.Taggable) {
	t.Helper()
	parsed, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Push(parsed, what); err != nil {
		t.Fatalf("push %s: %v", reference, err)
	}
}

// pullImage gives an engine the suite's image.
func (s *suite) pullImage(t *testing.T, e engine.Engine) engine.Image {
	t.Helper()
	reference := Registry(t) + "/suite/image:1"
	Push(t, reference, Image(t, []tar.Header{
		{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755},
		File("etc/os-release", "ID=suite\n"),
		// As images of systemd's distributions have it.
		{Typeflag: tar.TypeSymlink, Name: "etc/resolv.conf", Linkname: "/run/systemd/resolve/stub-resolv.conf"},
	}))
	image, err := e.PullImage(t.Context(), engine.PullRequest{Reference: reference}, nil)
	if err != nil {
		t.Fatalf("PullImage: %v", err)
	}
	return image
}
