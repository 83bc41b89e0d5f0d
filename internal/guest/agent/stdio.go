package agent

import (
	"fmt"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
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

// newTerminal makes a pseudo-terminal; a size of 0 is left to the kernel.
func newTerminal(size *guestv1.Resize) (*stdio, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	s := &stdio{}
	// The master moves into a descriptor that the runtime waits on without a
	// thread; the slave into one that stays blocking, for the process.
	ours, err1 := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	theirs, err2 := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = master.Close()
	_ = slave.Close()
	if err2 == nil {
		s.opened = append(s.opened, theirs)
	}
	if err1 == nil {
		err1 = unix.SetNonblock(ours, true)
		s.stdout = os.NewFile(uintptr(ours), "terminal")
	}
	if err1 != nil || err2 != nil {
		s.closeAll()
		return nil, fmt.Errorf("open a terminal: %w", firstOf(err1, err2))
	}
	s.child = [3]int{theirs, theirs, theirs}
	s.stdin = s.stdout
	s.resize(size)
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

func (s *stdio) isTerminal() bool { return s.stdin != nil && s.stdin == s.stdout }

// resize changes the terminal's size, and with it sends SIGWINCH.
func (s *stdio) resize(size *guestv1.Resize) {
	if !s.isTerminal() || size.GetColumns() == 0 || size.GetRows() == 0 {
		return
	}
	const most = 1<<16 - 1
	_ = control(s.stdout, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{
			Col: uint16(min(size.GetColumns(), most)),
			Row: uint16(min(size.GetRows(), most)),
		})
	})
}

// endOfFileKey is the byte that a terminal takes for the end of its input.
func (s *stdio) endOfFileKey() byte {
	key := byte('D' & 0x1f)
	_ = control(s.stdout, func(fd int) error {
		settings, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil && settings.Cc[unix.VEOF] != 0 {
			key = settings.Cc[unix.VEOF]
		}
		return err
	})
	return key
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
