package storetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore"
)

// ArchiveStore is a whole store that can be exported and imported.
type ArchiveStore interface {
	AuthStore
	fleet.Store
	gateway.Store
	Export(ctx context.Context, header sqlstore.Header, to io.Writer) (int64, error)
	Import(ctx context.Context, from io.Reader, accept func(sqlstore.Header) error) (int64, error)
}

// Archives is the suite of exports from stores of one kind that are imported
// into another. source and target make empty stores that end with the test.
func Archives(t *testing.T, source, target func(*testing.T) ArchiveStore) {
	t.Run("what was exported is there after an import", func(t *testing.T) {
		from := source(t)
		fill(t, from)
		archive := export(t, from)
		to := target(t)
		var header sqlstore.Header
		rows, err := to.Import(t.Context(), bytes.NewReader(archive), func(h sqlstore.Header) error {
			header = h
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if header.Version != "1.2.3" || !header.CreateTime.Equal(epoch) || string(header.Files["key"]) != "\x00secret" {
			t.Errorf("header %+v", header)
		}
		want, got := contents(t, archive), contents(t, export(t, to))
		if diff := cmp.Diff(want, got); diff != "" || int64(len(got)) != rows {
			t.Errorf("%d rows were imported; what is there differs (-exported +imported):\n%s", rows, diff)
		}
		for _, table := range []string{
			"organizations", "tokens", "clusters", "managed_runners", "runner_revisions", "runner_credentials",
			"request_ids", "audit_log", "sandboxes", "sandbox_tags", "sandbox_volumes",
		} {
			if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, `"table":"`+table+`"`) }) {
				t.Errorf("the suite fills no row of %s", table)
			}
		}
		// The store goes on from there.
		insertRunner(t, to, runner("r2", "c2"))
	})

	t.Run("an archive that is cut off or changed imports nothing", func(t *testing.T) {
		from := source(t)
		fill(t, from)
		archive := export(t, from)
		to := target(t)
		for name, damaged := range map[string][]byte{
			"cut off":          archive[:len(archive)-20],
			"a row less":       rewritten(t, archive, func(lines []string) []string { return slices.Delete(lines, len(lines)-2, len(lines)-1) }),
			"a column less":    rewritten(t, archive, func(lines []string) []string { return replaced(lines, `"name":"org",`, ``) }),
			"no such table":    rewritten(t, archive, func(lines []string) []string { return replaced(lines, `"table":"tokens"`, `"table":"sqlite_master"`) }),
			"one bit":          flipped(archive),
			"followed by more": append(slices.Clone(archive), archive...),
			"a row too late":   rewritten(t, archive, func(lines []string) []string { return append(lines, lines[1]) }),
			"not an archive":   []byte("hello"),
			"other format":     rewritten(t, archive, func(lines []string) []string { return replaced(lines, `sandbar.archive.v1`, `sandbar.archive.v2`) }),
			"other schema":     rewritten(t, archive, func(lines []string) []string { return replaced(lines, `"schema":2`, `"schema":1000`) }),
		} {
			if rows, err := to.Import(t.Context(), bytes.NewReader(damaged), acceptAll); err == nil {
				t.Errorf("%s: imported %d rows", name, rows)
			}
			if left := contents(t, export(t, to)); len(left) != 0 {
				t.Fatalf("%s: left %q", name, left)
			}
		}
	})

	t.Run("a database that holds something is refused", func(t *testing.T) {
		from := source(t)
		fill(t, from)
		archive := export(t, from)
		to := target(t)
		organizations(t, to, "theirs")
		if _, err := to.Import(t.Context(), bytes.NewReader(archive), acceptAll); !errors.Is(err, sqlstore.ErrNotEmpty) {
			t.Errorf("Import = %v, want ErrNotEmpty", err)
		}
	})

	t.Run("a header that is not accepted changes nothing", func(t *testing.T) {
		from := source(t)
		fill(t, from)
		to := target(t)
		refused := errors.New("refused")
		_, err := to.Import(t.Context(), bytes.NewReader(export(t, from)), func(sqlstore.Header) error { return refused })
		if !errors.Is(err, refused) {
			t.Errorf("Import = %v, want the refusal", err)
		}
		if left := contents(t, export(t, to)); len(left) != 0 {
			t.Errorf("left %q", left)
		}
	})

	t.Run("an export in the middle of writes is of one instant", func(t *testing.T) {
		from := source(t)
		organizations(t, from, "org")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		written := make(chan struct{})
		go func() {
			for i := 0; ; i++ {
				record := Sandbox("org", "sb-"+string(rune('a'+i%26))+strings.Repeat("x", i/26), epoch, "tag")
				if _, _, err := from.InsertSandbox(context.WithoutCancel(ctx), record); err != nil {
					ended <- err
					return
				}
				select {
				case written <- struct{}{}:
				case <-ctx.Done():
					ended <- nil
					return
				}
			}
		}()
		for range 3 {
			<-written
			exported := make(chan []string, 1)
			go func() { exported <- contents(t, export(t, from)) }()
			var lines []string
			for lines == nil {
				select {
				case <-written:
				case lines = <-exported:
				}
			}
			sandboxes, tags := 0, 0
			for _, line := range lines {
				if strings.Contains(line, `"table":"sandboxes"`) {
					sandboxes++
				}
				if strings.Contains(line, `"table":"sandbox_tags"`) {
					tags++
				}
			}
			if sandboxes == 0 || sandboxes != tags {
				t.Errorf("%d sandboxes and %d tags: each has one", sandboxes, tags)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func acceptAll(sqlstore.Header) error { return nil }

// fill makes at least one row in each table.
func fill(t *testing.T, store ArchiveStore) {
	t.Helper()
	organizations(t, store, "org", "other")
	for _, id := range []string{"c1", "c2"} {
		if err := store.InsertCluster(t.Context(), cluster(id), audit.Entry{OrganizationID: "org", Time: epoch, Detail: "ärger\n\"quoted\""}); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.InsertToken(t.Context(), auth.Token{TokenID: "t1", OrganizationID: "org", Hash: [32]byte{0, 1, 255}, CreateTime: epoch}, audit.Entry{OrganizationID: "org", Time: epoch, Before: []byte{0}, After: []byte{}}); err != nil {
		t.Fatal(err)
	}
	wish := newRunner(runner("r1", "c1"))
	wish.RequestID, wish.RequestDigest, wish.Answer, wish.RequestExpireTime = "request", []byte{1}, []byte{}, epoch.Add(time.Hour)
	if _, err := store.InsertRunner(t.Context(), wish); err != nil {
		t.Fatal(err)
	}
	err := store.PutCredential(t.Context(), fleet.Credential{
		RunnerIdentity: gateway.RunnerIdentity{RunnerKey: key("r1"), Revision: 1}, Kind: fleet.CredentialSession, CreateTime: epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	record := Sandbox("org", "sb-1", epoch, "tag", "другой")
	record.Spec.Volumes = []*sandboxv1.SandboxVolume{{Source: &sandboxv1.SandboxVolume_VolumeId{VolumeId: "volume"}}}
	insert(t, store, record)
	insert(t, store, Sandbox("org", "sb-2", epoch))
}

func export(t *testing.T, store ArchiveStore) []byte {
	t.Helper()
	var archive bytes.Buffer
	header := sqlstore.Header{Version: "1.2.3", CreateTime: epoch, Files: map[string][]byte{"key": []byte("\x00secret")}}
	if _, err := store.Export(t.Context(), header, &archive); err != nil {
		t.Error(err)
	}
	return archive.Bytes()
}

// contents are an archive's rows, sorted.
func contents(t *testing.T, archive []byte) []string {
	t.Helper()
	lines := unpack(t, archive)
	rows := lines[1 : len(lines)-1]
	slices.Sort(rows)
	return rows
}

func unpack(t *testing.T, archive []byte) []string {
	t.Helper()
	unpacked, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// rewritten is an archive with other lines.
func rewritten(t *testing.T, archive []byte, change func([]string) []string) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	if _, err := io.WriteString(packed, strings.Join(change(unpack(t, archive)), "\n")); err != nil {
		t.Fatal(err)
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// flipped is an archive whose checksum is not its contents'.
func flipped(archive []byte) []byte {
	changed := slices.Clone(archive)
	const trailer = 8 // CRC-32 and length (RFC 1952)
	changed[len(changed)-trailer] ^= 1
	return changed
}

func replaced(lines []string, text, by string) []string {
	for i, line := range lines {
		lines[i] = strings.Replace(line, text, by, 1)
	}
	return lines
}
