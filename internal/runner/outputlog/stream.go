package outputlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
	"unicode/utf8"
)

// Errors of reading.
var (
	// ErrGap: the output that would be next is not kept any more.
	ErrGap = errors.New("output is not kept any more")
	// ErrBeyond: the offset lies behind all that was ever written.
	ErrBeyond = errors.New("offset lies behind the output")
)

// ChunkSize is the most that one chunk holds, in bytes.
const ChunkSize = 32 << 10

// Chunk is a piece of formatted output.
type Chunk struct {
	Data []byte
	// Time is when the process wrote its first byte.
	Time time.Time
	// NextOffset is how many formatted bytes of the session have been read,
	// these included.
	NextOffset uint64
}

// Selection says where a new session starts: at the later of both places, or
// at the oldest output that is kept.
type Selection struct {
	// TailLines is how many of the last lines to show; 0: all.
	TailLines int64
	// Since: zero, or nothing that was written before.
	Since      time.Time
	Timestamps bool
}

// NewSession begins a session.
func (l *Log) NewSession(sandboxID string, selection Selection) (Session, error) {
	start, err := l.tail(selection.TailLines)
	if err == nil && !selection.Since.IsZero() {
		start, err = l.since(start, selection.Since)
	}
	if err != nil {
		return Session{}, fmt.Errorf("find the start of the output: %w", err)
	}
	return Session{SandboxID: sandboxID, Start: start, Timestamps: selection.Timestamps}, nil
}

func (l *Log) bounds() (oldest, end Mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) > 0 {
		oldest = l.segments[0].start
	}
	return oldest, l.end
}

// tail is where the last lines begin.
func (l *Log) tail(lines int64) (Mark, error) {
	oldest, end := l.bounds()
	// What is left of a cut line counts as one.
	kept := end.Lines - oldest.Lines
	if oldest.MidLine && end.Offset > oldest.Offset {
		kept++
	}
	if lines <= 0 || uint64(lines) >= kept {
		return oldest, nil
	}
	wanted := end.Lines - uint64(lines)
	return l.scan(oldest, end, func(place Mark, record Record) (Mark, bool) {
		if place.after(record.Data).Lines <= wanted {
			return Mark{}, false
		}
		for i := range record.Data {
			if !place.MidLine && place.Lines == wanted {
				return place, true
			}
			place = place.after(record.Data[i : i+1])
		}
		return Mark{}, false
	})
}

// since is the first place at or behind start whose output is no older.
func (l *Log) since(start Mark, since time.Time) (Mark, error) {
	_, end := l.bounds()
	return l.scan(start, end, func(place Mark, record Record) (Mark, bool) {
		return place, !record.Time.Before(since)
	})
}

// scan reads records from start until found says so; otherwise it answers
// with end.
func (l *Log) scan(start, end Mark, found func(Mark, Record) (Mark, bool)) (Mark, error) {
	reader := &reader{log: l, place: start}
	defer reader.close()
	for reader.place.Offset < end.Offset {
		place := reader.place
		record, err := reader.next()
		if err != nil {
			return Mark{}, err
		}
		if at, ok := found(place, record); ok {
			return at, nil
		}
	}
	return end, nil
}

// reader reads records in order from a place that is kept.
type reader struct {
	log *Log
	// place is where the next record begins.
	place Mark
	// cursor is nil before the first read and at the end of a segment.
	cursor *cursor
	// segment is where the cursor's segment starts.
	segment uint64
	// rest is the part of a record behind the place where reading began.
	rest Record
}

// next answers io.EOF at the end of what there is, and ErrGap. The record is
// valid until the next call.
func (r *reader) next() (Record, error) {
	for {
		size, atEnd, err := r.size()
		switch {
		case err != nil:
			return Record{}, err
		case atEnd:
			return Record{}, io.EOF
		case r.cursor == nil:
			if err := r.open(); err != nil {
				return Record{}, err
			}
			continue
		}
		record := r.rest
		r.rest = Record{}
		if len(record.Data) == 0 {
			record, err = r.cursor.next(size)
		}
		if errors.Is(err, io.EOF) {
			r.close()
			continue
		}
		if err != nil {
			return Record{}, err
		}
		r.place = r.place.after(record.Data)
		return record, nil
	}
}

// size is how much of the cursor's file can be read, if there is one; atEnd
// says that all output has been read.
func (r *reader) size() (size int64, atEnd bool, err error) {
	r.log.mu.Lock()
	atEnd = r.place.Offset == r.log.end.Offset
	current, ok := r.log.segmentFor(r.segment)
	r.log.mu.Unlock()
	if atEnd || r.cursor == nil {
		return 0, atEnd, nil
	}
	if ok && current.start.Offset == r.segment {
		return current.size, false, nil
	}
	// The segment has been dropped while it was read: it is whole.
	info, err := r.cursor.file.Stat()
	if err != nil {
		return 0, false, fmt.Errorf("measure an output segment: %w", err)
	}
	return info.Size(), false, nil
}

// open opens the segment that holds the place and goes there.
func (r *reader) open() error {
	r.log.mu.Lock()
	current, ok := r.log.segmentFor(r.place.Offset)
	r.log.mu.Unlock()
	if !ok {
		return ErrGap
	}
	opened, err := openCursor(current.path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrGap
	}
	if err != nil {
		return fmt.Errorf("open an output segment: %w", err)
	}
	r.cursor, r.segment = opened, current.start.Offset
	for at := current.start.Offset; at < r.place.Offset; {
		record, err := r.cursor.next(current.size)
		if errors.Is(err, io.EOF) {
			r.close()
			return ErrGap
		}
		if err != nil {
			r.close()
			return fmt.Errorf("go to the place in the output: %w", err)
		}
		length := uint64(len(record.Data))
		if behind := r.place.Offset - at; behind < length {
			record.Data = record.Data[behind:]
			r.rest = record
		}
		at += length
	}
	return nil
}

func (r *reader) close() {
	if r.cursor != nil {
		r.cursor.close()
		r.cursor = nil
	}
}

// Stream reads the formatted output of a session. One goroutine uses it.
type Stream struct {
	session Session
	reader  *reader
	follow  bool
	// until is where a stream that does not follow ends.
	until uint64
	// skip is how many formatted bytes to leave out, because the reader has
	// them.
	skip   uint64
	offset uint64
	// held has been formatted and comes next.
	held     []byte
	heldTime time.Time
}

// OpenStream reads a session from a formatted offset on; with follow it waits
// for more until the log is finished, otherwise it ends where the output ends
// now. It answers ErrGap when that place is not kept any more and ErrBeyond
// when there never was one.
func (l *Log) OpenStream(session Session, offset uint64, follow bool) (*Stream, error) {
	l.mu.Lock()
	end, segments := l.end, l.segments
	l.mu.Unlock()
	if total, ok := session.formatted(end); !ok || offset > total {
		return nil, ErrBeyond
	}
	base, skip, ok := session.locate(segments, offset)
	if !ok {
		return nil, ErrGap
	}
	return &Stream{
		session: session,
		reader:  &reader{log: l, place: base},
		follow:  follow,
		until:   end.Offset,
		skip:    skip,
		offset:  offset,
	}, nil
}

// locate finds a kept place at or before a formatted offset, and how many
// formatted bytes lie between.
func (s Session) locate(segments []segment, offset uint64) (place Mark, skip uint64, ok bool) {
	for i := len(segments) - 1; i >= 0; i-- {
		start := segments[i].start
		if start.Offset <= s.Start.Offset {
			return s.Start, offset, true
		}
		if before, behind := s.formatted(start); behind && before <= offset {
			return start, offset - before, true
		}
	}
	return s.Start, offset, len(segments) == 0
}

// Next returns the next chunk as soon as there is one; io.EOF at the end.
func (s *Stream) Next(ctx context.Context) (Chunk, error) {
	for {
		// Taken before reading, so that no change is missed.
		s.reader.log.mu.Lock()
		changed := s.reader.log.waiter()
		ended := s.reader.log.ended
		s.reader.log.mu.Unlock()

		data, at, err := s.read()
		last := errors.Is(err, io.EOF) && (!s.follow || ended)
		if data = s.cut(data, at, last); len(data) > 0 {
			s.offset += uint64(len(data))
			return Chunk{Data: data, Time: at, NextOffset: s.offset}, nil
		}
		if last || (err != nil && !errors.Is(err, io.EOF)) {
			return Chunk{}, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Chunk{}, ctx.Err()
		}
	}
}

// read formats records until there is at least a chunk. What it has read
// before an error comes with it.
func (s *Stream) read() (data []byte, at time.Time, err error) {
	data, at = s.held, s.heldTime
	s.held = nil
	for len(data) < ChunkSize {
		if !s.follow && s.reader.place.Offset >= s.until {
			return data, at, io.EOF
		}
		place := s.reader.place
		record, err := s.reader.next()
		if err != nil {
			return data, at, err
		}
		if len(data) == 0 {
			at = record.Time
		}
		data = s.session.format(data, place, record.Data, record.Time)
		skipped := min(s.skip, uint64(len(data)))
		data = data[skipped:]
		s.skip -= skipped
	}
	return data, at, nil
}

// cut takes one chunk off data and keeps the rest for later: what is too much
// and, unless nothing follows, the beginning of a character.
func (s *Stream) cut(data []byte, at time.Time, last bool) []byte {
	size := min(len(data), ChunkSize)
	if size < len(data) || !last {
		size -= incompleteRune(data[:size])
	}
	s.held, s.heldTime = data[size:], at
	return data[:size:size]
}

// incompleteRune is how many bytes at the end begin a UTF-8 character that
// needs more of them.
func incompleteRune(data []byte) int {
	for back := 1; back <= min(len(data), utf8.UTFMax-1); back++ {
		b := data[len(data)-back]
		if utf8.RuneStart(b) {
			if !utf8.FullRune(data[len(data)-back:]) {
				return back
			}
			return 0
		}
	}
	return 0
}

// Close releases what the stream holds.
func (s *Stream) Close() { s.reader.close() }
