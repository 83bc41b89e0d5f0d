package agent

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// drainTime is how long output is still awaited after a process has ended,
// when a descendant of it holds the pipe open. What was in the pipe when the
// process ended is delivered however long that takes.
const drainTime = 250 * time.Millisecond

// terminalQueueBytes is more than a terminal holds.
const terminalQueueBytes = 64 << 10

// pump reads everything that comes out of a pipe or terminal.
type pump struct {
	file *os.File
	raw  syscall.RawConn
	// emit takes one chunk and may keep it only until it returns.
	emit func(data []byte) error

	// taken counts the bytes read.
	taken     int
	held      [utf8.UTFMax]byte
	heldBytes int
}

func newPump(file *os.File, emit func([]byte) error) (*pump, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &pump{file: file, raw: raw, emit: emit}, nil
}

// run returns nil at the end of the output, or emit's error. Each read is one
// chunk, so that writes that are apart in time stay apart.
func (p *pump) run() error {
	defer p.file.Close()
	for {
		var outcome error
		err := p.raw.Read(func(fd uintptr) bool {
			outcome = p.readOnce(int(fd))
			return !errors.Is(outcome, unix.EAGAIN)
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return p.drain()
		case err != nil || errors.Is(outcome, errEndOfOutput):
			return nil
		case outcome != nil:
			return outcome
		}
	}
}

// expire makes run end at the end of what is there, after drainTime at most.
func (p *pump) expire() { _ = p.file.SetReadDeadline(time.Now().Add(drainTime)) }

var errEndOfOutput = errors.New("end of output")

// readOnce reads and emits one chunk. It answers EAGAIN when nothing is there
// and errEndOfOutput when nothing will be.
//
// A character that is cut off at the end of what was read is held back for one
// more read: what follows it is there already, or the bytes go as they are.
func (p *pump) readOnce(fd int) error {
	buf := buffers.get()
	defer buffers.put(buf)
	held := copy(buf[:], p.held[:p.heldBytes])
	p.heldBytes = 0
	n, err := read(fd, buf[held:])
	if err != nil {
		if held > 0 {
			return p.emit(buf[:held])
		}
		return err
	}
	p.taken += n
	data := buf[:held+n]
	complete := len(data) - lengthOfPartialRune(data)
	p.heldBytes = copy(p.held[:], data[complete:])
	if complete == 0 {
		return nil
	}
	return p.emit(data[:complete])
}

// drain emits what is in the pipe now.
func (p *pump) drain() error {
	var outcome error
	_ = p.raw.Control(func(fd uintptr) {
		inPipe, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		if err != nil {
			inPipe = terminalQueueBytes
		}
		for until := p.taken + inPipe; (p.taken < until || p.heldBytes > 0) && outcome == nil; {
			outcome = p.readOnce(int(fd))
		}
	})
	if errors.Is(outcome, unix.EAGAIN) || errors.Is(outcome, errEndOfOutput) {
		return nil
	}
	return outcome
}

func read(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return 0, unix.EAGAIN
		case err != nil, n == 0:
			// A terminal whose last process has gone answers EIO.
			return 0, errEndOfOutput
		default:
			return n, nil
		}
	}
}

// lengthOfPartialRune returns how many bytes at the end begin a UTF-8
// character that is not complete.
func lengthOfPartialRune(data []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		tail := data[len(data)-i:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return i
		}
	}
	return 0
}
