package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

const (
	// MaxMessageBytes bounds one message, without its length prefix. Both ends
	// refuse a longer one before they allocate for it.
	MaxMessageBytes = 1 << 20
	// MaxChunkBytes bounds the bytes of a stream (stdin, file contents) that
	// one message carries.
	MaxChunkBytes = 64 << 10

	lengthBytes = 4
	// A buffer that grew beyond this for one message is not kept for the next.
	keptBufferBytes = MaxChunkBytes + 4<<10
)

// ErrFraming is what a peer that does not speak the protocol causes: a length
// of zero or beyond MaxMessageBytes, or bytes that are no message. Nothing
// after it on the connection can be trusted.
var ErrFraming = errors.New("malformed frame")

// Writer writes messages, each behind its length (4 bytes, big endian), with
// one Write of the underlying writer per message. It is not safe for
// concurrent use.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write sends one message. A message that is empty or larger than
// MaxMessageBytes is refused before anything is written.
func (w *Writer) Write(m proto.Message) error {
	size := proto.Size(m)
	if size == 0 || size > MaxMessageBytes {
		return fmt.Errorf("%w: message of %d bytes, expected 1 to %d", ErrFraming, size, MaxMessageBytes)
	}
	buf := w.buf[:0]
	if need := lengthBytes + size; cap(buf) < need {
		buf = make([]byte, 0, need)
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(size))
	buf, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buf, m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	_, err = w.w.Write(buf)
	w.buf = buf
	if cap(buf) > keptBufferBytes {
		w.buf = nil
	}
	return err
}

// Reader reads what a Writer wrote. It is not safe for concurrent use.
type Reader struct {
	r      io.Reader
	length [lengthBytes]byte
	buf    []byte
}

// NewReader returns a Reader of r. It never reads beyond the message that is
// asked for.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Read reads the next message into m, replacing what m held. It answers io.EOF
// when the peer closed between messages, io.ErrUnexpectedEOF when it closed
// within one, and an error that is ErrFraming when the bytes are no message.
func (r *Reader) Read(m proto.Message) error {
	frame, err := r.next()
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(frame, m); err != nil {
		return fmt.Errorf("%w: %w", ErrFraming, err)
	}
	return nil
}

// ReadRequest is Read, except that the bytes of stdin and file_data are only
// lent: they lie in the Reader's buffer and are overwritten by its next read.
// Streams then cost no memory.
func (r *Reader) ReadRequest(m *guestv1.Request) error {
	frame, err := r.next()
	if err != nil {
		return err
	}
	number, data := parseChunk(frame)
	switch number {
	case requestStdin:
		m.Reset()
		m.Call = &guestv1.Request_Stdin{Stdin: data}
	case requestFileData:
		m.Reset()
		m.Call = &guestv1.Request_FileData{FileData: data}
	default:
		if err := proto.Unmarshal(frame, m); err != nil {
			return fmt.Errorf("%w: %w", ErrFraming, err)
		}
	}
	return nil
}

// next returns the bytes of the next message, which the next call overwrites.
func (r *Reader) next() ([]byte, error) {
	if _, err := io.ReadFull(r.r, r.length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(r.length[:])
	if size == 0 || size > MaxMessageBytes {
		return nil, fmt.Errorf("%w: length %d, expected 1 to %d", ErrFraming, size, MaxMessageBytes)
	}
	if uint32(cap(r.buf)) < size {
		r.buf = make([]byte, size)
	}
	buf := r.buf[:size]
	if cap(buf) > keptBufferBytes {
		r.buf = nil
	}
	if _, err := io.ReadFull(r.r, buf); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return buf, nil
}

// Field numbers of Request, as in guest.proto.
const (
	requestStdin    protowire.Number = 20
	requestFileData protowire.Number = 23
)

// parseChunk recognises a message that is one field of bytes and nothing else;
// the number is 0 for any other.
func parseChunk(frame []byte) (protowire.Number, []byte) {
	number, kind, n := protowire.ConsumeTag(frame)
	if n < 0 || kind != protowire.BytesType {
		return 0, nil
	}
	data, m := protowire.ConsumeBytes(frame[n:])
	if m != len(frame)-n {
		return 0, nil
	}
	return number, data
}
