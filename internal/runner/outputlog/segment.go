package outputlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Record is a piece of output as it was read from the process.
type Record struct {
	Time time.Time
	// Stream is 1 for stdout and 2 for stderr.
	Stream uint8
	Data   []byte
}

// A segment file is a header and then records, all integers big endian:
//
//	header  magic [8]byte, offset u64, lines u64, mid-line u8, source u64
//	record  length u32, crc u32, stream u8, unix nanoseconds i64, source u64, data
//
// The checksum covers what follows it. source is the position behind the
// record in all that the process wrote, which runs ahead of the output's
// offset when some of it was lost on the way.
const (
	segmentMagic     = "sbarlog1"
	segmentHeader    = 8 + 8 + 8 + 1 + 8
	recordHeader     = 4 + 4 + 1 + 8 + 8
	segmentSuffix    = ".log"
	maxRecordPayload = 1 << 20
)

var errTorn = errors.New("record is not whole")

type segment struct {
	path  string
	start Mark
	// source is the process's position at the start.
	source uint64
	// size is how many bytes of the file hold whole records.
	size int64
}

func segmentPath(dir string, offset uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", offset, segmentSuffix))
}

// segmentOffset reads the offset that a segment's name carries.
func segmentOffset(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	offset, err := strconv.ParseUint(digits, 10, 64)
	return offset, err == nil
}

func appendSegmentHeader(out []byte, start Mark, source uint64) []byte {
	out = append(out, segmentMagic...)
	out = binary.BigEndian.AppendUint64(out, start.Offset)
	out = binary.BigEndian.AppendUint64(out, start.Lines)
	midLine := byte(0)
	if start.MidLine {
		midLine = 1
	}
	out = append(out, midLine)
	return binary.BigEndian.AppendUint64(out, source)
}

func parseSegmentHeader(data []byte) (start Mark, source uint64, err error) {
	if len(data) < segmentHeader || string(data[:8]) != segmentMagic {
		return Mark{}, 0, errors.New("not an output segment")
	}
	start = Mark{
		Offset:  binary.BigEndian.Uint64(data[8:]),
		Lines:   binary.BigEndian.Uint64(data[16:]),
		MidLine: data[24] == 1,
	}
	return start, binary.BigEndian.Uint64(data[25:]), nil
}

func appendRecord(out []byte, record Record, source uint64) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(len(record.Data)))
	checksumAt := len(out)
	out = append(out, 0, 0, 0, 0, record.Stream)
	out = binary.BigEndian.AppendUint64(out, uint64(record.Time.UnixNano()))
	out = binary.BigEndian.AppendUint64(out, source)
	out = append(out, record.Data...)
	binary.BigEndian.PutUint32(out[checksumAt:], crc32.ChecksumIEEE(out[checksumAt+4:]))
	return out
}

// parseRecord reads the first record of data, whose bytes it shares, and says
// how long it is. errTorn means that data ends too early or is damaged.
func parseRecord(data []byte) (record Record, source uint64, length int, err error) {
	if len(data) < recordHeader {
		return Record{}, 0, 0, errTorn
	}
	payload := int(binary.BigEndian.Uint32(data))
	length = recordHeader + payload
	if payload > maxRecordPayload || len(data) < length {
		return Record{}, 0, length, errTorn
	}
	if crc32.ChecksumIEEE(data[8:length]) != binary.BigEndian.Uint32(data[4:]) {
		return Record{}, 0, length, errTorn
	}
	record = Record{
		Stream: data[8],
		Time:   time.Unix(0, int64(binary.BigEndian.Uint64(data[9:]))),
		Data:   data[recordHeader:length:length],
	}
	return record, binary.BigEndian.Uint64(data[17:]), length, nil
}

// openSegment reads a segment through, cuts off a torn end, and answers with
// the place and the process's position behind it.
func openSegment(path string) (found segment, end Mark, source uint64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return segment{}, Mark{}, 0, err
	}
	start, source, err := parseSegmentHeader(data)
	if err != nil {
		return segment{}, Mark{}, 0, err
	}
	found = segment{path: path, start: start, source: source, size: segmentHeader}
	end = start
	for rest := data[segmentHeader:]; len(rest) > 0; {
		record, after, length, err := parseRecord(rest)
		if err != nil {
			break
		}
		end, source = end.after(record.Data), after
		found.size += int64(length)
		rest = rest[length:]
	}
	if found.size < int64(len(data)) {
		if err := os.Truncate(path, found.size); err != nil {
			return segment{}, Mark{}, 0, err
		}
	}
	return found, end, source, nil
}

// cursor reads the records of one segment file, ahead in large pieces.
type cursor struct {
	file *os.File
	// at is where the buffer begins in the file.
	at     int64
	buffer []byte
}

const readAhead = 256 << 10

func openCursor(path string) (*cursor, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &cursor{file: file, at: segmentHeader}, nil
}

// next answers io.EOF at size. The record is valid until the next call.
func (c *cursor) next(size int64) (Record, error) {
	for want := recordHeader; ; {
		record, _, length, err := parseRecord(c.buffer)
		if err == nil {
			c.buffer = c.buffer[length:]
			c.at += int64(length)
			return record, nil
		}
		available := size - c.at
		if available == 0 {
			return Record{}, io.EOF
		}
		want = max(want, length)
		if len(c.buffer) >= want || available < int64(want) {
			return Record{}, fmt.Errorf("read %s at %d: %w", c.file.Name(), c.at, errTorn)
		}
		c.buffer = make([]byte, min(available, max(readAhead, int64(want))))
		if _, err := c.file.ReadAt(c.buffer, c.at); err != nil {
			return Record{}, fmt.Errorf("read %s at %d: %w", c.file.Name(), c.at, err)
		}
	}
}

func (c *cursor) close() {
	_ = c.file.Close() // only read from
}
