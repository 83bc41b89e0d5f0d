package outputlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
)

// Log is the output of one process. Safe for concurrent use; one goroutine
// appends.
type Log struct {
	dir   string
	limit int64

	mu sync.Mutex
	// segments: oldest first, at most two.
	segments []segment
	file     *os.File
	end      Mark
	source   uint64
	ended    bool
	// changed is closed at the next change; nil while nobody waits.
	changed chan struct{}
}

// Open opens the log in a directory, which the first Append makes when it is
// not there. limit is how many bytes the files may take together.
func Open(dir string, limit int64) (*Log, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open output log: %w", err)
	}
	log := &Log{dir: dir, limit: limit}
	var offsets []uint64
	for _, entry := range entries {
		if offset, ok := segmentOffset(entry.Name()); ok {
			offsets = append(offsets, offset)
		}
	}
	slices.Sort(offsets)
	for _, offset := range offsets {
		if err := log.adopt(segmentPath(dir, offset)); err != nil {
			return nil, fmt.Errorf("open output log: %w", err)
		}
	}
	return log, nil
}

func (l *Log) adopt(path string) error {
	found, end, source, err := openSegment(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		// A segment whose header is damaged says nothing of itself.
		return os.Remove(path)
	}
	keep := 2
	if len(l.segments) > 0 && found.start.Offset != l.end.Offset {
		// What was before has lost its end: it does not lead here.
		keep = 1
	}
	l.segments = append(l.segments, found)
	l.end, l.source = end, source
	return l.dropOldest(keep)
}

// Source is the process's position behind all that has been appended.
func (l *Log) Source() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source
}

// Append adds a record. source is the position behind it in all that the
// process wrote. A record whose bytes have been appended before is ignored,
// and the part of one that is new is kept.
func (l *Log) Append(record Record, source uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if source <= l.source {
		return nil
	}
	if begin := source - uint64(len(record.Data)); begin < l.source {
		record.Data = record.Data[l.source-begin:]
	}
	for data := record.Data; len(data) > 0; {
		piece := data[:min(len(data), maxRecordPayload)]
		data = data[len(piece):]
		if err := l.append(Record{Time: record.Time, Stream: record.Stream, Data: piece}, source-uint64(len(data))); err != nil {
			return fmt.Errorf("append to output log: %w", err)
		}
	}
	l.wake()
	return nil
}

func (l *Log) append(record Record, source uint64) error {
	if err := l.prepare(); err != nil {
		return err
	}
	current := &l.segments[len(l.segments)-1]
	encoded := appendRecord(make([]byte, 0, recordHeader+len(record.Data)), record, source)
	if _, err := l.file.WriteAt(encoded, current.size); err != nil {
		return err
	}
	current.size += int64(len(encoded))
	l.end, l.source = l.end.after(record.Data), source
	return nil
}

// prepare makes sure that the newest segment is open and has room.
func (l *Log) prepare() error {
	count := len(l.segments)
	if count > 0 && l.segments[count-1].size < l.limit/2 {
		if l.file != nil {
			return nil
		}
		file, err := os.OpenFile(l.segments[count-1].path, os.O_WRONLY, 0)
		l.file = file
		return err
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	path := segmentPath(l.dir, l.end.Offset)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	header := appendSegmentHeader(nil, l.end, l.source)
	if _, err := file.WriteAt(header, 0); err != nil {
		return errors.Join(err, file.Close(), os.Remove(path))
	}
	if l.file != nil {
		err = l.file.Close()
	}
	l.file = file
	l.segments = append(l.segments, segment{path: path, start: l.end, source: l.source, size: segmentHeader})
	return errors.Join(err, l.dropOldest(2))
}

func (l *Log) dropOldest(keep int) error {
	for len(l.segments) > keep {
		path := l.segments[0].path
		l.segments = l.segments[1:]
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Finish says that nothing will be appended any more; readers then come to an
// end instead of waiting.
func (l *Log) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wake()
}

// Close releases the file, which stays. Readers go on.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// Changed returns a channel that is closed at the next change.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiter()
}

func (l *Log) waiter() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// segmentFor finds the newest segment that begins at or before an offset.
func (l *Log) segmentFor(offset uint64) (found segment, ok bool) {
	for _, candidate := range slices.Backward(l.segments) {
		if candidate.start.Offset <= offset {
			return candidate, true
		}
	}
	return segment{}, false
}
