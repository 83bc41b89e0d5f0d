package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// name is what an organization's or runner's id must look like to name a
// directory.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// runnerFiles are the files of one runner.
type runnerFiles string

// revisionFiles are the files of one revision.
type revisionFiles string

func (o Options) runnerFiles(organizationID, runnerID string) (runnerFiles, error) {
	for _, id := range []string{organizationID, runnerID} {
		if !name.MatchString(id) {
			return "", fmt.Errorf("%q cannot name a directory: expected 1 to 128 letters, digits, dots, hyphens and underscores", id)
		}
	}
	return runnerFiles(filepath.Join(o.Directory, "runners", organizationID, runnerID)), nil
}

func (f runnerFiles) state() string     { return filepath.Join(string(f), "state") }
func (f runnerFiles) engine() string    { return filepath.Join(string(f), "engine") }
func (f runnerFiles) revisions() string { return filepath.Join(string(f), "revisions") }
func (f runnerFiles) uninstall() string { return filepath.Join(string(f), "uninstall.json") }

func (f runnerFiles) revision(number int32) revisionFiles {
	return revisionFiles(filepath.Join(f.revisions(), strconv.FormatInt(int64(number), 10)))
}

// engineName sets the runner's engine apart from all others on the host, also
// those of servers with another directory.
func (f runnerFiles) engineName() string {
	sum := sha256.Sum256([]byte(f))
	return "r" + hex.EncodeToString(sum[:6])
}

// installed lists the revisions of which files are there.
func (f runnerFiles) installed() ([]int32, error) {
	entries, err := os.ReadDir(f.revisions())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list revisions: %w", err)
	}
	var numbers []int32
	for _, entry := range entries {
		if number, err := strconv.ParseInt(entry.Name(), 10, 32); err == nil {
			numbers = append(numbers, int32(number))
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (f revisionFiles) config() string     { return filepath.Join(string(f), "config.json") }
func (f revisionFiles) token() string      { return filepath.Join(string(f), "token") }
func (f revisionFiles) credential() string { return filepath.Join(string(f), "credential") }
func (f revisionFiles) process() string    { return filepath.Join(string(f), "process.json") }
func (f revisionFiles) log() string        { return filepath.Join(string(f), "runner.log") }

// cgroup is the name of the control group of the revision's process.
func (f revisionFiles) cgroup() string {
	sum := sha256.Sum256([]byte(f))
	return "sandbar-runner-" + hex.EncodeToString(sum[:6])
}

// replace writes a file that only the owner reads, whole or not at all, and
// says whether its content has changed.
func replace(path string, data []byte) (changed bool, err error) {
	if before, err := os.ReadFile(path); err == nil && slices.Equal(before, data) {
		return false, nil
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(file.Name())))
	}
	return true, nil
}
