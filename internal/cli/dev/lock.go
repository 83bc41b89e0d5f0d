package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lock is held on a data directory by the process that works on it. The kernel
// lets go of it when the process ends, however it does.
type lock struct{ file *os.File }

func lockPath(directory string) string { return filepath.Join(directory, "lock") }

func inUseError(directory string) error {
	return fmt.Errorf("another sandbar dev works on %s: end that first, or choose another --data-dir", directory)
}

// checkUnused says whether the directory is free, without changing anything.
func checkUnused(directory string) error {
	file, err := os.Open(lockPath(directory))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the lock of the data directory: %w", err)
	}
	defer file.Close()
	return tryLock(file, directory)
}

// acquire makes the directory if need be and takes the lock.
func acquire(directory string) (*lock, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	file, err := os.OpenFile(lockPath(directory), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the lock of the data directory: %w", err)
	}
	if err := tryLock(file, directory); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &lock{file: file}, nil
}

func tryLock(file *os.File, directory string) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return inUseError(directory)
	}
	if err != nil {
		return fmt.Errorf("lock the data directory: %w", err)
	}
	return nil
}

func (l *lock) release() {
	// Closing lets go; there is nothing to do about an error at the end.
	_ = l.file.Close()
}
