package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
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
	if _, err := io.ReadFull(r.r, r.length[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(r.length[:])
	if size == 0 || size > MaxMessageBytes {
		return fmt.Errorf("%w: length %d, expected 1 to %d", ErrFraming, size, MaxMessageBytes)
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
			return io.ErrUnexpectedEOF
		}
		return err
	}
	if err := proto.Unmarshal(buf, m); err != nil {
		return fmt.Errorf("%w: %w", ErrFraming, err)
	}
	return nil
}
