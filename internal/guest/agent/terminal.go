package agent

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// How often a terminal is told that its input has ended.
const (
	firstEndOfFilePause = 20 * time.Millisecond
	lastEndOfFilePause  = time.Second
)

const noDescriptor = -1

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
		s.tellsWaitingInput, err2 = tellsWaitingInput(theirs)
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

// pressEndOfFile presses the terminal's end-of-file key until ended is closed.
// One key ends one read only, is lost on a program that just switches the
// terminal's mode, and on a line that is not empty only delivers it; the end
// of a pipe knows none of that.
//
// Where inputWaits can tell, a key is not pressed while one is still unread.
// gVisor needs that: its read that takes an end of file while more is queued
// blocks instead of returning, so that the second key takes the first away,
// the third one the second, and no read ever ends.
func (s *stdio) pressEndOfFile(ended <-chan struct{}) {
	peer := noDescriptor
	if s.tellsWaitingInput {
		peer = s.openPeer()
		defer func() { _ = unix.Close(peer) }()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstEndOfFilePause; ; pause = min(2*pause, lastEndOfFilePause) {
		select {
		case <-ended:
			return
		case <-timer.C:
		}
		if peer == noDescriptor || !inputWaits(peer) {
			// A key that does not get through is pressed again.
			_ = s.stdin.SetWriteDeadline(time.Now().Add(pause))
			_, _ = s.stdin.Write([]byte{s.endOfFileKey()})
		}
		timer.Reset(pause)
	}
}

// openPeer opens the process's end of the terminal, never to block on it nor
// to make it the guest's own terminal; noDescriptor when that fails.
func (s *stdio) openPeer() int {
	peer := noDescriptor
	_ = control(s.stdout, func(fd int) error {
		const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC
		opened, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, flags)
		if errno != 0 {
			return errno
		}
		peer = int(opened)
		return nil
	})
	return peer
}

// inputWaits reports whether a process that reads from the terminal would get
// something, be it the end of the file. It takes nothing away: it reads no
// byte. fd is the process's end, in non-blocking mode. Linux always says yes,
// gVisor the truth.
func inputWaits(fd int) bool {
	_, err := unix.Read(fd, nil)
	return !errors.Is(err, unix.EAGAIN)
}

// tellsWaitingInput reports whether inputWaits is to be believed of a terminal
// into which nothing was typed so far. fd is the process's end, in blocking
// mode.
func tellsWaitingInput(fd int) (bool, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return false, err
	}
	tells := !inputWaits(fd)
	return tells, unix.SetNonblock(fd, false)
}
