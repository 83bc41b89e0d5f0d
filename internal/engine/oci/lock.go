package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockRetry is how often a lock held by another is tried again. flock cannot
// wait with a deadline.
const lockRetry = 5 * time.Millisecond

// errLocked: another, in this process or another one, works there.
var errLocked = errors.New("locked")

// tryLockDir locks a directory for as long as the file is open. The kernel lets
// go of it when the process dies.
func tryLockDir(path string) (*os.File, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return dir, nil
}

// lockDir waits for the lock until ctx ends.
func lockDir(ctx context.Context, path string) (*os.File, error) {
	dir, err := tryLockDir(path)
	if !errors.Is(err, errLocked) {
		return dir, err
	}
	ticker := time.NewTicker(lockRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock on %s: %w", path, ctx.Err())
		case <-ticker.C:
			dir, err := tryLockDir(path)
			if !errors.Is(err, errLocked) {
				return dir, err
			}
		}
	}
}
