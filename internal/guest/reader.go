package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// firstBufferBytes holds the messages of most calls.
const firstBufferBytes = 512

// Reader reads what a Writer wrote, and may read ahead of what is asked for.
// It is not safe for concurrent use.
type Reader struct {
	r io.Reader
	// buf[start:end] was read and not yet taken.
	buf        []byte
	start, end int
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Read reads the next message into m, replacing what m held. It answers io.EOF
// when the peer closed between messages, io.ErrUnexpectedEOF when it closed
// within one, and an error that is ErrFraming when the bytes are no message.
func (r *Reader) Read(m proto.Message) error {
	frame, err := r.next()
	if err != nil {
		return err
	}
	return unmarshal(frame, m)
}

// ReadRequest is Read, except that the bytes of stdin and file_data are only
// lent: they lie in the Reader's buffer and are overwritten by its next read.
// Streams then cost no memory.
func (r *Reader) ReadRequest(m *guestv1.Request) error {
	frame, err := r.next()
	if err != nil {
		return err
	}
	number, data := parseField(frame)
	if number == requestStdin {
		m.Reset()
		m.Call = &guestv1.Request_Stdin{Stdin: data}
		return nil
	}
	if number == requestFileData {
		m.Reset()
		m.Call = &guestv1.Request_FileData{FileData: data}
		return nil
	}
	return unmarshal(frame, m)
}

// ReadResponse is Read, except that the bytes of file_data, and of an output
// with nothing but its stream, are only lent, as those of ReadRequest.
func (r *Reader) ReadResponse(m *guestv1.Response) error {
	frame, err := r.next()
	if err != nil {
		return err
	}
	number, data := parseField(frame)
	if number == responseFileData {
		m.Reset()
		m.Answer = &guestv1.Response_FileData{FileData: data}
		return nil
	}
	if number == responseOutput {
		if output, ok := parseOutput(data); ok {
			m.Reset()
			m.Answer = &guestv1.Response_Output{Output: output}
			return nil
		}
	}
	return unmarshal(frame, m)
}

func unmarshal(frame []byte, m proto.Message) error {
	if err := proto.Unmarshal(frame, m); err != nil {
		return fmt.Errorf("%w: %w", ErrFraming, err)
	}
	return nil
}

// Ready says that the next message has been read ahead: reading it does not
// wait, and leaves the bytes alone that were lent before.
func (r *Reader) Ready() bool {
	read := r.buf[r.start:r.end]
	return len(read) >= lengthBytes && uint64(len(read)) >= lengthBytes+uint64(binary.BigEndian.Uint32(read))
}

// next returns the bytes of the next message, which the next call overwrites.
func (r *Reader) next() ([]byte, error) {
	if err := r.fill(lengthBytes); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(r.buf[r.start:])
	if size == 0 || size > MaxMessageBytes {
		return nil, fmt.Errorf("%w: length %d, expected 1 to %d", ErrFraming, size, MaxMessageBytes)
	}
	whole := lengthBytes + int(size)
	if err := r.fill(whole); err != nil {
		return nil, err
	}
	frame := r.buf[r.start+lengthBytes : r.start+whole : r.start+whole]
	r.start += whole
	return frame, nil
}

// fill reads until at least need bytes are there to be taken. It answers
// io.EOF only when none is.
func (r *Reader) fill(need int) error {
	if r.end-r.start >= need {
		return nil
	}
	r.makeRoom(need)
	n, err := io.ReadAtLeast(r.r, r.buf[r.end:], need-(r.end-r.start))
	held := r.end - r.start
	r.end += n
	if errors.Is(err, io.EOF) && held > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// makeRoom moves what is left to the front of a buffer of need bytes or more.
// One that a read has filled was too small for what was there: of a stream in
// small messages, many are then read at once.
func (r *Reader) makeRoom(need int) {
	left := r.buf[r.start:r.end]
	if r.end > 0 && r.end == len(r.buf) {
		need = max(need, min(2*len(r.buf), keptBufferBytes))
	}
	// One that grew beyond what is kept goes as soon as the rest fits.
	if len(r.buf) < need || len(r.buf) > keptBufferBytes && max(need, len(left)) <= keptBufferBytes {
		r.buf = make([]byte, max(need, len(left), firstBufferBytes))
	}
	r.end = copy(r.buf, left)
	r.start = 0
}
