package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// blockBytes is the unit of a file's blocks (stat(2)).
const blockBytes = 512

// Disk measures the data directory's file system.
func (e *Engine) Disk(context.Context) (engine.Disk, error) { return measureDisk(e.config.DataDir) }

func measureDisk(path string) (engine.Disk, error) {
	var space unix.Statfs_t
	if err := unix.Statfs(path, &space); err != nil {
		return engine.Disk{}, fmt.Errorf("measure the disk of %s: %w", path, err)
	}
	return engine.Disk{
		TotalBytes: int64(space.Blocks) * space.Frsize,
		FreeBytes:  int64(space.Bavail) * space.Frsize,
		TotalFiles: int64(space.Files),
		FreeFiles:  int64(space.Ffree),
	}, nil
}

// DiskUsage measures a sandbox's writable directory, and what its processes
// have open of it without a name.
func (e *Engine) DiskUsage(_ context.Context, id string) (engine.DiskUsage, error) {
	dir, _, err := e.existing(id)
	if err != nil {
		return engine.DiskUsage{}, err
	}
	m := measurement{counted: map[fileID]struct{}{}}
	for _, path := range []string{dir.upper(), dir.work()} {
		if err := m.tree(path); err != nil {
			return engine.DiskUsage{}, fmt.Errorf("measure the disk usage of sandbox %s: %w", id, err)
		}
	}
	pids, err := e.cgroups.processes(e.cgroup(id))
	if err != nil {
		return engine.DiskUsage{}, fmt.Errorf("measure the disk usage of sandbox %s: %w", id, err)
	}
	for _, pid := range pids {
		m.unnamed(pid)
	}
	return m.usage, nil
}

type fileID struct{ device, inode uint64 }

// measurement adds files up, each once.
type measurement struct {
	usage engine.DiskUsage
	// counted holds the files that can be met again.
	counted map[fileID]struct{}
}

func (m *measurement) add(status *unix.Stat_t, again bool) {
	if again {
		id := fileID{status.Dev, status.Ino}
		if _, ok := m.counted[id]; ok {
			return
		}
		m.counted[id] = struct{}{}
	}
	m.usage.Bytes += status.Blocks * blockBytes
	m.usage.Files++
}

// maxRelativePath is how long a path may become before the walk goes on from a
// new starting point: a sandbox may nest directories deeper than a path can say.
const maxRelativePath = 2048

// tree adds what is below a directory. The sandbox writes there meanwhile: no
// link is followed, and what vanishes is left out.
func (m *measurement) tree(path string) error {
	root, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return m.below(int(root.Fd()), ".")
}

func (m *measurement) below(base int, path string) error {
	fd, err := unix.Openat2(base, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if vanished(err) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	children, err := m.entries(dir)
	if err != nil {
		return err
	}
	if len(path) > maxRelativePath {
		base, path = fd, "."
	} else if err := dir.Close(); err != nil {
		return err
	}
	for _, child := range children {
		if err := m.below(base, filepath.Join(path, child)); err != nil {
			return err
		}
	}
	return nil
}

// entries adds a directory's entries and answers with the directories of them.
func (m *measurement) entries(dir *os.File) (directories []string, err error) {
	const atATime = 1024
	for {
		entries, err := dir.ReadDir(atATime)
		for _, entry := range entries {
			var status unix.Stat_t
			err := unix.Fstatat(int(dir.Fd()), entry.Name(), &status, unix.AT_SYMLINK_NOFOLLOW)
			if vanished(err) {
				continue
			}
			if err != nil {
				return nil, &os.PathError{Op: "stat", Path: entry.Name(), Err: err}
			}
			isDirectory := status.Mode&unix.S_IFMT == unix.S_IFDIR
			m.add(&status, !isDirectory && status.Nlink > 1)
			if isDirectory {
				directories = append(directories, entry.Name())
			}
		}
		if errors.Is(err, io.EOF) || vanished(err) {
			return directories, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// vanished: what was listed has been removed, or replaced by something else.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ESTALE)
}

// unnamed adds the files of overlays that a process holds, by a descriptor or a
// mapping, and that no directory has. A process that ends meanwhile holds none.
// Each of its threads may have descriptors of its own. Mappings are all threads',
// and shown for those that have not ended, as the first may have.
func (m *measurement) unnamed(pid int) {
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return
	}
	mapped := false
	for _, thread := range threads {
		directory := filepath.Join("/proc", thread.Name())
		m.held(filepath.Join(directory, "fd"))
		mapped = mapped || m.held(filepath.Join(directory, "map_files"))
	}
}

// held adds what the links in a directory of /proc lead to; false when there
// are none.
func (m *measurement) held(directory string) bool {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		var status unix.Stat_t
		var space unix.Statfs_t
		// What has a name, or lies in memory, is counted elsewhere.
		if unix.Stat(path, &status) != nil || status.Nlink > 0 || unix.Statfs(path, &space) != nil || space.Type != unix.OVERLAYFS_SUPER_MAGIC {
			continue
		}
		m.add(&status, true)
	}
	return len(entries) > 0
}

// roomCheck is written to beside what fills the disk: it fails with
// engine.ErrNoSpace when fewer than keep bytes are free.
type roomCheck struct {
	path string
	keep int64
}

func (r roomCheck) Write(p []byte) (int, error) {
	disk, err := measureDisk(r.path)
	if err == nil && disk.FreeBytes < r.keep {
		err = fmt.Errorf("%w: %d bytes are free and %d are kept free", engine.ErrNoSpace, disk.FreeBytes, r.keep)
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
