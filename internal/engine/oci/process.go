package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process names one process for good: a PID alone is given out again.
type process struct {
	PID int `json:"pid"`
	// StartTicks is when it started, in clock ticks since boot (proc(5), stat
	// field 22).
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootId"`
}

// errProcessGone: the process has ended.
var errProcessGone = errors.New("process has ended")

// identify answers errProcessGone when no process has the PID.
func identify(pid int) (process, error) {
	ticks, err := startTicks(pid)
	if err != nil {
		return process{}, err
	}
	boot, err := bootID()
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, StartTicks: ticks, BootID: boot}, nil
}

// open returns a pidfd in non-blocking mode, or errProcessGone.
func (p process) open() (*os.File, error) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, errProcessGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	handle := os.NewFile(uintptr(fd), "pidfd")
	// The descriptor now holds whatever has the PID; only then is it worth
	// asking whether that is the process meant.
	now, err := identify(p.PID)
	if err == nil && now != p {
		err = errProcessGone
	}
	if err != nil {
		_ = handle.Close()
		return nil, err
	}
	return handle, nil
}

func (p process) alive() (bool, error) {
	handle, err := p.open()
	if errors.Is(err, errProcessGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, handle.Close()
}

// kill ends the process at once and waits for its end.
func (p process) kill(ctx context.Context) error {
	handle, err := p.open()
	if errors.Is(err, errProcessGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer handle.Close()
	return killAndWait(ctx, handle)
}

func killAndWait(ctx context.Context, handle *os.File) error {
	conn, err := handle.SyscallConn()
	if err != nil {
		return err
	}
	var signalErr error
	if err := conn.Control(func(fd uintptr) {
		signalErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	}); err != nil {
		return err
	}
	if errors.Is(signalErr, unix.ESRCH) {
		return nil
	}
	if signalErr != nil {
		return fmt.Errorf("kill: %w", signalErr)
	}
	return waitEnd(ctx, handle)
}

// waitEnd returns when the process of a pidfd has ended. It need not be a child
// of ours.
func waitEnd(ctx context.Context, handle *os.File) error {
	conn, err := handle.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = handle.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var pollErr error
	err = conn.Read(func(fd uintptr) bool {
		var ready bool
		ready, pollErr = readable(fd)
		return ready || pollErr != nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, pollErr)
}

func readable(fd uintptr) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// startTicks treats a process that has ended and waits to be reaped as gone.
func startTicks(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, errProcessGone
	}
	if err != nil {
		return 0, err
	}
	// The command's name, field 2, is in parentheses and may contain anything.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const state, start = 0, 19
	if len(fields) <= start {
		return 0, fmt.Errorf("parse /proc/%d/stat: %d fields", pid, len(fields))
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, errProcessGone
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse /proc/%d/stat: %w", pid, err)
	}
	return ticks, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}
