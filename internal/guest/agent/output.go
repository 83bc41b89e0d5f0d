package agent

import (
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

const (
	// outputKeptBytes and outputKeptChunks bound what is kept of the main
	// process's output; whichever is reached first drops the oldest chunks.
	outputKeptBytes  = 256 << 10
	outputKeptChunks = 4 << 10
	outputFirstBytes = 4 << 10
)

// outputLog keeps the latest output of the main process, each chunk with its
// stream and time. Appending never waits.
type outputLog struct {
	mu sync.Mutex
	// data holds the bytes of the kept chunks; the byte at offset o of all
	// that was ever written is data[o%len(data)].
	data []byte
	// chunks is a ring: count entries from first on, oldest first.
	chunks []outputChunk
	first  int
	count  int
	// written counts all bytes ever appended.
	written uint64
	closed  bool
	changed chan struct{}
}

// outputChunk ends where the next one begins.
type outputChunk struct {
	offset    uint64
	unixNanos int64
	stream    uint8
}

func newOutputLog() *outputLog { return &outputLog{changed: make(chan struct{})} }

// append adds one chunk of at most outputFrameBytes.
func (l *outputLog) append(stream uint8, data []byte, at time.Time) {
	if len(data) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.makeRoomLocked(len(data))
	l.chunks[(l.first+l.count)%len(l.chunks)] = outputChunk{offset: l.written, unixNanos: at.UnixNano(), stream: stream}
	l.count++
	start := int(l.written % uint64(len(l.data)))
	copied := copy(l.data[start:], data)
	copy(l.data, data[copied:])
	l.written += uint64(len(data))
	l.announceLocked()
}

// close says that nothing more comes.
func (l *outputLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.announceLocked()
}

// next returns the chunk, or the rest of the one, that begins at offset or
// after it when that was dropped; its data lies in buf. When nothing is there
// yet it returns a channel that is closed when there may be; when nothing will
// come, io.EOF.
func (l *outputLog) next(offset uint64, buf []byte) (*guestv1.Output, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset > l.written {
		return nil, nil, fmt.Errorf("%d, expected at most %d, which is all that was written", offset, l.written)
	}
	if offset == l.written {
		if l.closed {
			return nil, nil, io.EOF
		}
		return nil, l.changed, nil
	}
	var dropped uint64
	if oldest := l.chunkLocked(0).offset; offset < oldest {
		dropped = oldest - offset
		offset = oldest
	}
	index := l.findLocked(offset)
	end := l.written
	if index+1 < l.count {
		end = l.chunkLocked(index + 1).offset
	}
	data := buf[:min(end-offset, uint64(len(buf)))]
	start := int(offset % uint64(len(l.data)))
	copied := copy(data, l.data[start:])
	copy(data[copied:], l.data)
	chunk := l.chunkLocked(index)
	return &guestv1.Output{
		Stream:  uint32(chunk.stream),
		Data:    data,
		Time:    timestamppb.New(time.Unix(0, chunk.unixNanos)),
		Dropped: dropped,
		Offset:  offset,
	}, nil, nil
}

func (l *outputLog) chunkLocked(i int) outputChunk { return l.chunks[(l.first+i)%len(l.chunks)] }

// findLocked returns the index of the chunk that holds the byte at offset.
func (l *outputLog) findLocked(offset uint64) int {
	low, high := 0, l.count
	for high-low > 1 {
		if middle := (low + high) / 2; l.chunkLocked(middle).offset <= offset {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// makeRoomLocked grows up to the bounds and then drops the oldest chunks, so
// that one of size bytes fits.
func (l *outputLog) makeRoomLocked(size int) {
	if l.count == len(l.chunks) && l.count < outputKeptChunks {
		grown := make([]outputChunk, max(16, 2*l.count))
		for i := range l.count {
			grown[i] = l.chunkLocked(i)
		}
		l.chunks, l.first = grown, 0
	}
	if l.count == len(l.chunks) {
		l.dropOldestLocked()
	}
	capacity := max(len(l.data), outputFirstBytes)
	for capacity < l.keptLocked()+size && capacity < outputKeptBytes {
		capacity *= 2
	}
	if capacity > len(l.data) {
		l.growDataLocked(capacity)
	}
	for l.keptLocked()+size > len(l.data) {
		l.dropOldestLocked()
	}
}

func (l *outputLog) growDataLocked(capacity int) {
	grown := make([]byte, capacity)
	for offset := l.written - uint64(l.keptLocked()); offset < l.written; {
		from := l.data[offset%uint64(len(l.data)):]
		from = from[:min(uint64(len(from)), l.written-offset)]
		offset += uint64(copy(grown[offset%uint64(capacity):], from))
	}
	l.data = grown
}

func (l *outputLog) dropOldestLocked() {
	l.first = (l.first + 1) % len(l.chunks)
	l.count--
}

func (l *outputLog) keptLocked() int {
	if l.count == 0 {
		return 0
	}
	return int(l.written - l.chunkLocked(0).offset)
}

func (l *outputLog) announceLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}
