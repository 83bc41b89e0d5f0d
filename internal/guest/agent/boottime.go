package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// waitBoottime returns nil after d, counted by a clock that goes on while the
// machine or the sandbox is suspended, or the context's error.
func waitBoottime(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d <= 0 {
		return nil
	}
	timer, err := newBoottimeTimer(d)
	if err != nil {
		// Without such a clock: the ordinary one, which only ends later.
		return sleep(ctx, d)
	}
	defer timer.Close()
	defer context.AfterFunc(ctx, func() { _ = timer.SetReadDeadline(time.Unix(0, 1)) })()
	var expirations [8]byte
	if _, err := timer.Read(expirations[:]); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("read timer: %w", err)
	}
	return nil
}

func newBoottimeTimer(d time.Duration) (*os.File, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(fd, 0, &spec, nil); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "timer"), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// millis saturates instead of overflowing.
func millis(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(n, most)) * time.Millisecond
}
