package oci

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/enginetest"
)

// newTestStore makes a store of images without an engine around it.
func newTestStore(t *testing.T, change func(*Config)) *imageStore {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: images keep the owners of their files")
	}
	return newStoreAt(t, t.TempDir(), change)
}

func newStoreAt(t *testing.T, data string, change func(*Config)) *imageStore {
	t.Helper()
	config := Config{DataDir: data, Name: "images", GuestPath: "/guest"}
	if change != nil {
		change(&config)
	}
	config, err := config.complete()
	if err != nil {
		t.Fatal(err)
	}
	images, references := filepath.Join(data, "images"), filepath.Join(data, "references")
	for _, dir := range []string{images, references} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := newImageStore(config, images, references)
	t.Cleanup(s.close)
	return s
}

func (s *imageStore) mustPull(t *testing.T, request engine.PullRequest) storedImage {
	t.Helper()
	image, err := s.pull(t.Context(), request, nil)
	if err != nil {
		t.Fatalf("pull %s: %v", request.Reference, err)
	}
	return image
}

// front counts and may refuse the requests to a registry.
func front(t *testing.T, registry string, refuse func(*http.Request) int) (host string, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	target := &url.URL{Scheme: "http", Host: registry}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if status := refuse(r); status != 0 {
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			}
			w.WriteHeader(status)
			return
		}
		request, err := http.NewRequestWithContext(r.Context(), r.Method, target.String()+r.URL.Path, r.Body)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		request.Header = r.Header
		answer, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		for key, values := range answer.Header {
			w.Header()[key] = values
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), requests
}

func TestPullFlattensLayersInOrder(t *testing.T) {
	s := newTestStore(t, nil)
	reference := enginetest.Registry(t) + "/a/b:1"
	enginetest.Push(t, reference, enginetest.Image(t,
		[]tar.Header{
			{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o750, Uid: 7, Gid: 8},
			enginetest.File("dir/kept", "below"), enginetest.File("dir/replaced", "below"), enginetest.File("dir/deleted", "below"),
			{Typeflag: tar.TypeDir, Name: "opaque/", Mode: 0o755},
			enginetest.File("opaque/hidden", "below"),
			{Typeflag: tar.TypeLink, Name: "hard", Linkname: "dir/kept"},
		},
		[]tar.Header{
			enginetest.File("dir/replaced", "above"), enginetest.File("dir/.wh.deleted", ""),
			enginetest.File("opaque/.wh..wh..opq", ""), enginetest.File("opaque/shown", "above"),
		},
	))
	image := s.mustPull(t, engine.PullRequest{Reference: reference})
	root, err := s.rootfs(image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"dir/kept": "below", "dir/replaced": "above", "opaque/shown": "above", "hard": "below"} {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"dir/deleted", "opaque/hidden", "dir/.wh.deleted"} {
		if _, err := os.Lstat(filepath.Join(root, path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	var status unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "dir"), &status); err != nil || status.Uid != 7 || status.Gid != 8 || status.Mode&0o777 != 0o750 {
		t.Errorf("dir = %+v, %v; want owner 7:8 and mode 750", status, err)
	}
	if image.Config.WorkingDir != "/work" || image.Config.User != "1:2" || len(image.Config.Entrypoint) != 1 || image.SizeBytes == 0 {
		t.Errorf("image = %+v", image)
	}
}

func TestHostileLayersStayInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, entries := range map[string][]tar.Header{
		"a path upwards":           {enginetest.File("../../../../../../../../../.."+outside, "changed")},
		"an absolute path":         {enginetest.File(outside, "changed")},
		"a link then through it":   {{Typeflag: tar.TypeSymlink, Name: "link", Linkname: filepath.Dir(outside)}, enginetest.File("link/outside", "changed")},
		"a relative link upwards":  {{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "../../../../../../../../.." + filepath.Dir(outside)}, enginetest.File("link/outside", "changed")},
		"a hard link to a file":    {{Typeflag: tar.TypeLink, Name: "hard", Linkname: outside}, enginetest.File("hard", "changed")},
		"a whiteout upwards":       {enginetest.File("../../../../../../../../.."+filepath.Dir(outside)+"/.wh.outside", "")},
		"a whiteout through links": {{Typeflag: tar.TypeSymlink, Name: "link", Linkname: filepath.Dir(outside)}, enginetest.File("link/.wh.outside", "")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, nil)
			reference := enginetest.Registry(t) + "/evil:1"
			enginetest.Push(t, reference, enginetest.Image(t, entries))
			// The layer may be refused or taken harmlessly.
			if _, err := s.pull(t.Context(), engine.PullRequest{Reference: reference}, nil); err != nil && !errors.Is(err, engine.ErrImageInvalid) {
				t.Errorf("pull = %v; want ErrImageInvalid or success", err)
			}
			if got, err := os.ReadFile(outside); err != nil || string(got) != "untouched" {
				t.Errorf("the file outside = %q, %v", got, err)
			}
			checkNoWorkInProgress(t, s)
		})
	}
}

func checkNoWorkInProgress(t *testing.T, s *imageStore) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(s.dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("work in progress is left: %q, %v", left, err)
	}
}

func TestPullAsksOnlyWhenItMust(t *testing.T) {
	s := newTestStore(t, nil)
	backend := enginetest.Registry(t)
	host, requests := front(t, backend, func(*http.Request) int { return 0 })
	enginetest.Push(t, backend+"/a/b:1", enginetest.Image(t, []tar.Header{enginetest.File("f", "1")}))
	first := s.mustPull(t, engine.PullRequest{Reference: host + "/a/b:1"})
	before := requests.Load()
	if again := s.mustPull(t, engine.PullRequest{Reference: host + "/a/b:1"}); again.Digest != first.Digest || requests.Load() != before {
		t.Errorf("an image that is there cost %d requests", requests.Load()-before)
	}
	enginetest.Push(t, backend+"/a/b:1", enginetest.Image(t, []tar.Header{enginetest.File("f", "2")}))
	moved := s.mustPull(t, engine.PullRequest{Reference: host + "/a/b:1", Policy: engine.PullAlways})
	if moved.Digest == first.Digest {
		t.Error("PullAlways did not see that the tag has moved")
	}
	if byDigest := s.mustPull(t, engine.PullRequest{Reference: host + "/a/b@" + moved.Digest}); byDigest.Digest != moved.Digest {
		t.Errorf("pull by digest = %s; want %s", byDigest.Digest, moved.Digest)
	}
}

func TestConcurrentPullsShareTheWork(t *testing.T) {
	s := newTestStore(t, nil)
	backend := enginetest.Registry(t)
	image := enginetest.Image(t, []tar.Header{enginetest.File("f", "1")})
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	var downloads atomic.Int64
	host, _ := front(t, backend, func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, layer.String()) {
			downloads.Add(1)
		}
		return 0
	})
	enginetest.Push(t, backend+"/a/b:1", image)
	var pulls errgroup.Group
	for range 8 {
		pulls.Go(func() error {
			_, err := s.pull(t.Context(), engine.PullRequest{Reference: host + "/a/b:1", Policy: engine.PullAlways}, nil)
			return err
		})
	}
	if err := pulls.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := downloads.Load(); n != 1 {
		t.Errorf("the layer was downloaded %d times", n)
	}
	checkNoWorkInProgress(t, s)
}

func TestAMirrorIsAskedFirst(t *testing.T) {
	mirror, origin := enginetest.Registry(t), enginetest.Registry(t)
	s := newTestStore(t, func(c *Config) { c.Mirrors = map[string][]string{origin: {"http://" + mirror}} })
	fromMirror := enginetest.Image(t, []tar.Header{enginetest.File("f", "mirror")})
	enginetest.Push(t, mirror+"/a:1", fromMirror)
	enginetest.Push(t, origin+"/a:1", enginetest.Image(t, []tar.Header{enginetest.File("f", "origin")}))
	enginetest.Push(t, origin+"/only:1", enginetest.Image(t, []tar.Header{enginetest.File("f", "only")}))
	want, err := fromMirror.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := s.mustPull(t, engine.PullRequest{Reference: origin + "/a:1"}); got.Digest != want.String() {
		t.Errorf("digest = %s; want the mirror's, %s", got.Digest, want)
	}
	s.mustPull(t, engine.PullRequest{Reference: origin + "/only:1"})
	references, err := s.references()
	if err != nil || len(references[want.String()]) != 1 || references[want.String()][0] != origin+"/a:1" {
		t.Errorf("references = %v, %v; want the name that was asked for", references, err)
	}
}

func TestAFullDiskIsSaidToBeFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a small disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	s := newStoreAt(t, disk, nil)
	reference := enginetest.Registry(t) + "/large:1"
	enginetest.Push(t, reference, enginetest.Image(t, []tar.Header{enginetest.File("f", strings.Repeat("x", 1<<20))}))
	if _, err := s.pull(t.Context(), engine.PullRequest{Reference: reference}, nil); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("pull = %v; want ErrNoSpace", err)
	}
	checkNoWorkInProgress(t, s)
}

func TestUnfinishedPullsOfTheDeadAreRemoved(t *testing.T) {
	s := newTestStore(t, nil)
	dead, alive := filepath.Join(s.dir, ".pull-dead"), filepath.Join(s.dir, ".pull-alive")
	for _, dir := range []string{dead, alive} {
		if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := tryLockDir(alive)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := s.removeLeftovers(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead process's work is left: %v", err)
	}
	if _, err := os.Stat(alive); err != nil {
		t.Errorf("a living process's work is gone: %v", err)
	}
}

func TestFlightsEndWhenNobodyWaits(t *testing.T) {
	f := newFlights()
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		<-started
		cancel()
	}()
	_, err := f.do(ctx, "key", nil, func(ctx context.Context, _ func(engine.PullProgress)) (storedImage, error) {
		defer close(ended)
		close(started)
		<-ctx.Done()
		return storedImage{}, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("do = %v; want context.Canceled", err)
	}
	<-ended
	f.wait()
	image, err := f.do(t.Context(), "key", nil, func(context.Context, func(engine.PullProgress)) (storedImage, error) {
		return storedImage{Digest: "next", PullTime: time.Unix(1, 0)}, nil
	})
	if err != nil || image.Digest != "next" {
		t.Errorf("the next one got %+v, %v", image, err)
	}
	f.wait()
}
