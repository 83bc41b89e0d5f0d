package agent

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTheOutputLogKeepsTheLatest compares the log with one that keeps
// everything.
func TestTheOutputLogKeepsTheLatest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newOutputLog()
		var all []byte
		var ends []int
		buf := make([]byte, outputFrameBytes)
		next := byte(0)
		add := func(size int) {
			chunk := make([]byte, size)
			for i := range chunk {
				chunk[i] = next
				next += 7
			}
			log.append(stdoutStream, chunk, time.Unix(int64(len(ends)), 0))
			all = append(all, chunk...)
			if size > 0 {
				ends = append(ends, len(all))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"large chunk": func(t *rapid.T) { add(rapid.IntRange(0, outputFrameBytes).Draw(t, "size")) },
			"small chunk": func(t *rapid.T) { add(rapid.IntRange(0, 80).Draw(t, "size")) },
			"many tiny chunks": func(t *rapid.T) {
				for range rapid.IntRange(1, outputKeptChunks+10).Draw(t, "count") {
					add(1)
				}
			},
			"read": func(t *rapid.T) {
				from := rapid.IntRange(0, len(all)).Draw(t, "offset")
				output, wait, err := log.next(uint64(from), buf)
				if from == len(all) {
					if wait == nil || err != nil {
						t.Fatalf("at the end: %v, %v", output, err)
					}
					return
				}
				if err != nil || output == nil {
					t.Fatalf("offset %d: %v, %v", from, wait, err)
				}
				offset := int(output.GetOffset())
				if got, want := string(output.GetData()), string(all[offset:offset+len(output.GetData())]); got != want || got == "" {
					t.Fatalf("offset %d: %d bytes that were not written there", from, len(got))
				}
				if int(output.GetDropped()) != offset-from {
					t.Fatalf("offset %d: dropped %d, first at %d", from, output.GetDropped(), offset)
				}
				end := offset + len(output.GetData())
				index := int(output.GetTime().GetSeconds())
				if ends[index] != end || index > 0 && ends[index-1] > offset {
					t.Fatalf("chunk %d of %d..%d is said to be %d..%d", index, offset, end, offset, end)
				}
			},
			"": func(t *rapid.T) {
				if len(log.data) > outputKeptBytes || len(log.chunks) > outputKeptChunks || log.keptLocked() > len(log.data) {
					t.Fatalf("keeps %d bytes in %d, %d chunks", log.keptLocked(), len(log.data), len(log.chunks))
				}
				// Nothing is dropped before it must be.
				full := log.count == outputKeptChunks || log.keptLocked()+outputFrameBytes > outputKeptBytes
				if !full && log.keptLocked() != len(all) && len(all) <= outputKeptBytes-outputFrameBytes && len(ends) < outputKeptChunks {
					t.Fatalf("keeps %d of %d bytes", log.keptLocked(), len(all))
				}
			},
		})
	})
}

func TestTheOutputLogEnds(t *testing.T) {
	log := newOutputLog()
	_, wait, err := log.next(0, make([]byte, 10))
	if wait == nil || err != nil {
		t.Fatalf("nothing there: %v", err)
	}
	log.close()
	<-wait
	if _, _, err := log.next(0, make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, expected io.EOF", err)
	}
	if _, _, err := log.next(1, make([]byte, 10)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("beyond the end: %v", err)
	}
}

func TestPartialRunesAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"":             0,
		"a":            0,
		"€":            0,
		"a\xe2":        1,
		"a\xe2\x82":    2,
		"\xf0\x9f\x98": 3,
		"\xff":         0,
		"\x80\x80\x80": 0,
		"€\xc3":        1,
	} {
		if got := lengthOfPartialRune([]byte(text)); got != want {
			t.Errorf("%q: %d, expected %d", text, got, want)
		}
	}
}

func TestStatLinesWithStrangeNamesAreParsed(t *testing.T) {
	for line, want := range map[string]processEntry{
		"12 (sh) S 1 12 12 0 -1":           {'S', 1, 12},
		"13 (a) b) (c) R 12 13 11 0 -1":    {'R', 12, 11},
		"14 (with\nline) Z 2 14 14 0 -1 1": {'Z', 2, 14},
	} {
		if got, ok := parseStat([]byte(line)); !ok || got != want {
			t.Errorf("%q: %v, %v", line, got, ok)
		}
	}
	for _, line := range []string{"", "12", "12 (sh)", "12 (sh) S x y z", "12 (sh) S 1 2"} {
		if got, ok := parseStat([]byte(line)); ok {
			t.Errorf("%q is parsed as %v", line, got)
		}
	}
}

func TestTheMarkOfALineageIsRead(t *testing.T) {
	limits := strings.Join([]string{
		"Limit                     Soft Limit           Hard Limit           Units     ",
		"Max core file size        0                    unlimited            bytes     ",
		"Max resident set          4611686018427387905  unlimited            bytes     ",
		"Max processes             1                    1                    processes ",
	}, "\n")
	if got := parseTag([]byte(limits)); got != lineageBase+1 {
		t.Errorf("got %d", got)
	}
	for _, other := range []string{"", "Max resident set", "Max resident set          unlimited            unlimited            bytes"} {
		if got := parseTag([]byte(other)); got != 0 {
			t.Errorf("%q: %d", other, got)
		}
	}
}
