package agent

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stdio is a process's standard input and output: the process's ends, which
// are for one start, and the guest's ends.
type stdio struct {
	child [3]int
	// stdin is nil when the process reads nothing; on a terminal it is stdout.
	stdin  *os.File
	stdout *os.File
	// stderr is nil on a terminal.
	stderr *os.File
	// opened are the descriptors behind child, each once.
	opened []int
	// tellsWaitingInput says that inputWaits knows of this terminal's input.
	tellsWaitingInput bool
}

// newPipes makes pipes for stdout and stderr, and one for stdin, which is
// otherwise /dev/null.
func newPipes(stdin bool) (*stdio, error) {
	s := &stdio{}
	var err error
	if stdin {
		s.child[0], s.stdin, err = s.pipe(false)
	} else {
		s.child[0], err = s.open(os.DevNull, unix.O_RDONLY)
	}
	if err == nil {
		s.child[1], s.stdout, err = s.pipe(true)
	}
	if err == nil {
		s.child[2], s.stderr, err = s.pipe(true)
	}
	if err != nil {
		s.closeAll()
		return nil, err
	}
	return s, nil
}

func (s *stdio) pipe(childWrites bool) (child int, ours *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, fmt.Errorf("make a pipe: %w", err)
	}
	child, own := ends[0], ends[1]
	if childWrites {
		child, own = ends[1], ends[0]
	}
	s.opened = append(s.opened, child)
	// Only the guest's end: the two do not share this flag.
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(own)
		return 0, nil, fmt.Errorf("make a pipe: %w", err)
	}
	return child, os.NewFile(uintptr(own), "pipe"), nil
}

func (s *stdio) open(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", path, err)
	}
	s.opened = append(s.opened, fd)
	return fd, nil
}

// closeChild closes the process's ends in the guest.
func (s *stdio) closeChild() {
	for _, fd := range s.opened {
		_ = unix.Close(fd)
	}
	s.opened = nil
}

func (s *stdio) closeAll() {
	s.closeChild()
	for _, file := range []*os.File{s.stdin, s.stdout, s.stderr} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// control calls f with file's descriptor and leaves its mode alone, which
// File.Fd would not.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var outcome error
	if err := raw.Control(func(fd uintptr) { outcome = f(int(fd)) }); err != nil {
		return err
	}
	return outcome
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
