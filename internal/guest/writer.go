package guest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"google.golang.org/protobuf/proto"
)

// gatherBytes is how large a chunk must be for two pieces in one system call
// to cost less than a copy into one piece.
const gatherBytes = 4 << 10

// Writer writes messages, each behind its length (4 bytes, big endian), with
// one system call per message. The bytes of a stream go out from where they
// lie. It is not safe for concurrent use.
type Writer struct {
	w      io.Writer
	buf    []byte
	pieces [2][]byte
	gather net.Buffers
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write sends one message. A message that is empty or larger than
// MaxMessageBytes is refused before anything is written.
func (w *Writer) Write(m proto.Message) error {
	buf := append(w.buf[:0], 0, 0, 0, 0)
	buf, data := chunkOf(buf, m)
	if len(data) < gatherBytes {
		return w.writeWhole(m)
	}
	w.buf = buf
	size := len(buf) - lengthBytes + len(data)
	if size > MaxMessageBytes {
		return sizeError(size)
	}
	binary.BigEndian.PutUint32(buf, uint32(size))
	w.pieces = [2][]byte{buf, data}
	w.gather = w.pieces[:]
	_, err := w.gather.WriteTo(w.w)
	w.pieces = [2][]byte{}
	return err
}

func (w *Writer) writeWhole(m proto.Message) error {
	size := proto.Size(m)
	if size == 0 || size > MaxMessageBytes {
		return sizeError(size)
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

func sizeError(size int) error {
	return fmt.Errorf("%w: message of %d bytes, expected 1 to %d", ErrFraming, size, MaxMessageBytes)
}
