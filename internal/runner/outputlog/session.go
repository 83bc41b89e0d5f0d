package outputlog

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
)

// timeFormat has one width for every time, so that the formatted length of
// output depends only on how many lines begin in it.
const (
	timeFormat = "2006-01-02T15:04:05.000000000Z"
	prefixSize = uint64(len(timeFormat) + 1)
)

// ErrUnknownSession says that an identifier is of no session of this sandbox.
var ErrUnknownSession = errors.New("unknown output session")

// Session is a way to look at the output of one sandbox.
type Session struct {
	SandboxID string
	Start     Mark
	// Timestamps: each line is preceded by its time (RFC 3339, nanoseconds,
	// UTC) and a space. A session that starts within a line has the time
	// before the rest of it, too.
	Timestamps bool
}

const sessionVersion = 1

// ID is all there is to know of the session, as text.
func (s Session) ID() string {
	flags := byte(0)
	if s.Timestamps {
		flags |= 1
	}
	if s.Start.MidLine {
		flags |= 2
	}
	out := []byte{sessionVersion, flags}
	out = binary.AppendUvarint(out, s.Start.Offset)
	out = binary.AppendUvarint(out, s.Start.Lines)
	out = append(out, s.SandboxID...)
	return base64.RawURLEncoding.EncodeToString(out)
}

// ParseSession reads an identifier. It answers ErrUnknownSession for whatever
// was not made by ID for that sandbox.
func ParseSession(id, sandboxID string) (Session, error) {
	data, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(data) < 2 || data[0] != sessionVersion || data[1] > 3 {
		return Session{}, ErrUnknownSession
	}
	flags, rest := data[1], data[2:]
	offset, n := binary.Uvarint(rest)
	if n <= 0 {
		return Session{}, ErrUnknownSession
	}
	rest = rest[n:]
	lines, n := binary.Uvarint(rest)
	// A line has at least one byte.
	if n <= 0 || lines > offset || string(rest[n:]) != sandboxID {
		return Session{}, ErrUnknownSession
	}
	return Session{
		SandboxID:  sandboxID,
		Start:      Mark{Offset: offset, Lines: lines, MidLine: flags&2 != 0},
		Timestamps: flags&1 != 0,
	}, nil
}

// formatted is how many formatted bytes lie between the session's start and a
// place behind it; ok is false when the place cannot be behind that start.
func (s Session) formatted(place Mark) (size uint64, ok bool) {
	if place.Offset < s.Start.Offset || place.Lines < s.Start.Lines {
		return 0, false
	}
	size = place.Offset - s.Start.Offset
	if s.Timestamps {
		prefixes := place.Lines - s.Start.Lines
		if s.Start.MidLine && size > 0 {
			prefixes++
		}
		size += prefixes * prefixSize
	}
	return size, true
}

// format appends the formatted form of data that begins at a place.
func (s Session) format(out []byte, place Mark, data []byte, at time.Time) []byte {
	if !s.Timestamps {
		return append(out, data...)
	}
	prefix := at.UTC().Format(timeFormat) + " "
	lineStart := !place.MidLine || place.Offset == s.Start.Offset
	for _, b := range data {
		if lineStart {
			out = append(out, prefix...)
		}
		out = append(out, b)
		lineStart = b == '\n'
	}
	return out
}
