package outputlog_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandbar-project/sandbar/internal/runner/outputlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tester is what *testing.T and *rapid.T share.
type tester interface {
	rapid.TB
	Cleanup(func())
	Context() context.Context
}

const sandboxID = "0f5c"

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func open(t tester, dir string, limit int64) *outputlog.Log {
	t.Helper()
	log, err := outputlog.Open(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return log
}

func write(t tester, log *outputlog.Log, at time.Time, text string) {
	t.Helper()
	record := outputlog.Record{Time: at, Stream: 1, Data: []byte(text)}
	if err := log.Append(record, log.Source()+uint64(len(text))); err != nil {
		t.Fatal(err)
	}
}

func session(t tester, log *outputlog.Log, selection outputlog.Selection) outputlog.Session {
	t.Helper()
	made, err := log.NewSession(sandboxID, selection)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// read reads a session to its end and checks the offsets on the way.
func read(t tester, log *outputlog.Log, session outputlog.Session, offset uint64, follow bool) string {
	t.Helper()
	stream, err := log.OpenStream(session, offset, follow)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var all bytes.Buffer
	for {
		chunk, err := stream.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		all.Write(chunk.Data)
		if len(chunk.Data) == 0 || len(chunk.Data) > outputlog.ChunkSize {
			t.Fatalf("a chunk has %d bytes", len(chunk.Data))
		}
		if want := offset + uint64(all.Len()); chunk.NextOffset != want {
			t.Fatalf("next offset %d, want %d", chunk.NextOffset, want)
		}
	}
}

func TestSelections(t *testing.T) {
	log := open(t, t.TempDir(), 1<<20)
	write(t, log, epoch, "one\ntw")
	write(t, log, epoch.Add(time.Second), "o\nthree\n")
	write(t, log, epoch.Add(2*time.Second), "four")

	for name, tc := range map[string]struct {
		selection outputlog.Selection
		want      string
	}{
		"everything":                          {outputlog.Selection{}, "one\ntwo\nthree\nfour"},
		"an unfinished line counts":           {outputlog.Selection{TailLines: 1}, "four"},
		"a line may begin within a record":    {outputlog.Selection{TailLines: 3}, "two\nthree\nfour"},
		"more lines than there are":           {outputlog.Selection{TailLines: 99}, "one\ntwo\nthree\nfour"},
		"since includes its instant":          {outputlog.Selection{Since: epoch.Add(time.Second)}, "o\nthree\nfour"},
		"since the future":                    {outputlog.Selection{Since: epoch.Add(time.Hour)}, ""},
		"both mean the later":                 {outputlog.Selection{TailLines: 1, Since: epoch}, "four"},
		"timestamps precede every line":       {outputlog.Selection{TailLines: 2, Timestamps: true}, "2026-01-02T03:04:06.000000000Z three\n2026-01-02T03:04:07.000000000Z four"},
		"timestamps precede what begins late": {outputlog.Selection{Since: epoch.Add(time.Second), Timestamps: true}, "2026-01-02T03:04:06.000000000Z o\n2026-01-02T03:04:06.000000000Z three\n2026-01-02T03:04:07.000000000Z four"},
	} {
		t.Run(name, func(t *testing.T) {
			got := read(t, log, session(t, log, tc.selection), 0, false)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A session that is cut anywhere and resumed by its identifier reads what an
// uninterrupted one would, or is told that it cannot.
func TestResumedSessionContinuesExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := tempDir(t)
		limit := int64(rapid.IntRange(400, 4000).Draw(t, "limit"))
		log := open(t, dir, limit)
		piece := rapid.StringOfN(rapid.SampledFrom([]rune("ab\né世")), 1, 80, -1)
		clock := epoch
		produce := func(label string, most int) {
			for range rapid.IntRange(0, most).Draw(t, label) {
				clock = clock.Add(time.Millisecond)
				write(t, log, clock, piece.Draw(t, "piece"))
			}
		}
		produce("before", 40)
		made := session(t, log, outputlog.Selection{
			TailLines:  int64(rapid.IntRange(0, 10).Draw(t, "tail")),
			Timestamps: rapid.Bool().Draw(t, "timestamps"),
		})
		whole := read(t, log, made, 0, false)
		produce("after", 5)
		if rapid.Bool().Draw(t, "restart") {
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			log = open(t, dir, limit)
		}
		resumed, err := outputlog.ParseSession(made.ID(), sandboxID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(made, resumed); diff != "" {
			t.Fatal(diff)
		}
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		stream, err := log.OpenStream(resumed, uint64(cut), false)
		if errors.Is(err, outputlog.ErrGap) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		stream.Close()
		rest := read(t, log, resumed, uint64(cut), false)
		if !strings.HasPrefix(rest, whole[cut:]) {
			t.Fatalf("resumed at %d:\n%q\nwant it to begin with\n%q", cut, rest, whole[cut:])
		}
	})
}

func TestTailShowsTheLastLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := open(t, tempDir(t), 1<<20)
		all := ""
		for _, piece := range rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab\n")), 1, 20, -1), 0, 20).Draw(t, "pieces") {
			write(t, log, epoch, piece)
			all += piece
		}
		lines := strings.SplitAfter(all, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		wanted := rapid.IntRange(1, 30).Draw(t, "tail")
		want := strings.Join(lines[max(0, len(lines)-wanted):], "")
		if got := read(t, log, session(t, log, outputlog.Selection{TailLines: int64(wanted)}), 0, false); got != want {
			t.Fatalf("tail %d of %q is %q, want %q", wanted, all, got, want)
		}
	})
}

func TestOldOutputIsDroppedAndTold(t *testing.T) {
	log := open(t, t.TempDir(), 1000)
	first := session(t, log, outputlog.Selection{})
	all := ""
	for range 100 {
		write(t, log, epoch, "0123456789\n")
		all += "0123456789\n"
	}
	if _, err := log.OpenStream(first, 0, true); !errors.Is(err, outputlog.ErrGap) {
		t.Errorf("the dropped beginning: %v, want ErrGap", err)
	}
	if _, err := log.OpenStream(first, uint64(len(all))+1, true); !errors.Is(err, outputlog.ErrBeyond) {
		t.Errorf("behind the end: %v, want ErrBeyond", err)
	}
	if got := read(t, log, first, uint64(len(all))-5, false); got != "6789\n" {
		t.Errorf("the kept end is %q", got)
	}
	kept := read(t, log, session(t, log, outputlog.Selection{}), 0, false)
	if !strings.HasSuffix(all, kept) || len(kept) < 100 {
		t.Errorf("kept %d bytes: %q", len(kept), kept)
	}
}

func TestReaderThatIsTooSlowIsTold(t *testing.T) {
	log := open(t, t.TempDir(), 1000)
	write(t, log, epoch, "first\n")
	stream, err := log.OpenStream(session(t, log, outputlog.Selection{}), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		write(t, log, epoch, "0123456789\n")
	}
	for {
		_, err := stream.Next(t.Context())
		if errors.Is(err, outputlog.ErrGap) {
			return
		}
		if err != nil {
			t.Fatalf("got %v, want ErrGap", err)
		}
	}
}

func TestFollowEndsWhenTheOutputDoes(t *testing.T) {
	log := open(t, t.TempDir(), 1<<20)
	got := make(chan string)
	go func() { got <- read(t, log, outputlog.Session{SandboxID: sandboxID}, 0, true) }()
	write(t, log, epoch, "caf\xc3")
	write(t, log, epoch, "\xa9 \xe4")
	log.Finish()
	if text := <-got; text != "café \xe4" {
		t.Errorf("followed %q", text)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	log := open(t, t.TempDir(), 1<<20)
	stream, err := log.OpenStream(outputlog.Session{SandboxID: sandboxID}, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := stream.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestTornEndIsCutOff(t *testing.T) {
	dir := t.TempDir()
	log := open(t, dir, 1<<20)
	write(t, log, epoch, "whole\n")
	source := log.Source()
	write(t, log, epoch, "torn\n")
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	info, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], info.Size()-2); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, 1<<20)
	if again.Source() != source {
		t.Errorf("the process's position is %d, want %d", again.Source(), source)
	}
	write(t, again, epoch, "next\n")
	if got := read(t, again, session(t, again, outputlog.Selection{}), 0, false); got != "whole\nnext\n" {
		t.Errorf("kept %q", got)
	}
}

func TestRepeatedOutputIsKeptOnce(t *testing.T) {
	log := open(t, t.TempDir(), 1<<20)
	for _, piece := range []struct {
		source uint64
		data   string
	}{{3, "abc"}, {3, "abc"}, {5, "bcde"}, {10, "ij"}} {
		if err := log.Append(outputlog.Record{Time: epoch, Stream: 1, Data: []byte(piece.data)}, piece.source); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, log, session(t, log, outputlog.Selection{}), 0, false); got != "abcdeij" {
		t.Errorf("kept %q", got)
	}
}

func FuzzParseSession(f *testing.F) {
	f.Add(outputlog.Session{SandboxID: sandboxID, Start: outputlog.Mark{Offset: 7, Lines: 2, MidLine: true}, Timestamps: true}.ID())
	f.Add("")
	f.Fuzz(func(t *testing.T, id string) {
		parsed, err := outputlog.ParseSession(id, sandboxID)
		if err != nil {
			return
		}
		log := open(t, t.TempDir(), 1000)
		write(t, log, epoch, "a\nb")
		for _, offset := range []uint64{0, 1, 1 << 63} {
			if stream, err := log.OpenStream(parsed, offset, false); err == nil {
				_, _ = stream.Next(t.Context())
				stream.Close()
			}
		}
	})
}

func tempDir(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "outputlog")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
