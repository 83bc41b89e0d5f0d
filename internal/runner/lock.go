package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// lockPoll is how often a process in standby tries again. flock has no way to
// wait that a context could end.
const lockPoll = 100 * time.Millisecond

// lockDirectory waits until this process alone has the state directory.
// Closing the file gives it up; so does the process's end.
func lockDirectory(ctx context.Context, c clock.Clock, dir string, waiting func()) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	for first := true; ; first = false {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock the state directory: %w", err), file.Close())
		}
		if first {
			waiting()
		}
		timer := c.NewTimer(lockPoll)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(ctx.Err(), file.Close())
		}
	}
}
