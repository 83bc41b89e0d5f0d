package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// enrollmentKeyBytes is the size of the key that enrolment tokens are derived
// from.
const enrollmentKeyBytes = 32

// loadKey reads the key in that file, and makes one when it is not there.
func loadKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if err == nil {
		if len(key) != enrollmentKeyBytes {
			return nil, fmt.Errorf("%s holds %d bytes and should hold %d; restore it from a backup, or remove it: runners then enrol anew", path, len(key), enrollmentKeyBytes)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read enrolment key: %w", err)
	}
	key = make([]byte, enrollmentKeyBytes)
	// crypto/rand never fails.
	_, _ = rand.Read(key)
	return key, writeKey(path, key)
}

// writeKey writes all of the file or nothing, and has it on the disk before it
// answers.
func writeKey(path string, key []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write enrolment key: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write enrolment key: %w", err), file.Close(), os.Remove(file.Name()))
		}
	}()
	if _, err := file.Write(key); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return file.Close()
}

// lockDir takes the data directory for this process, for as long as the file
// is open.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("another server uses %s; stop it, or choose another data directory", dir), file.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the data directory: %w", err), file.Close())
	}
	return file, nil
}
