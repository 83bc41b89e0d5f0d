package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	mountpoint  string
	unified     bool
	controllers []string
}

// cgroups knows the hierarchies of this machine: many under version 1, one
// under version 2, and both kinds in hybrid mode.
type cgroups struct {
	hierarchies []hierarchy
	// hybrid: controllers under version 1, with a unified hierarchy beside them.
	hybrid bool
	// swap says whether version 1 accounts for swap.
	swap bool
}

func discoverCgroups() (cgroups, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return cgroups{}, fmt.Errorf("read mounts: %w", err)
	}
	var c cgroups
	var unified, legacy bool
	for _, m := range mounts {
		h := hierarchy{mountpoint: m.Mountpoint, unified: m.FSType == "cgroup2"}
		if h.unified {
			unified = true
		} else {
			legacy = true
			h.controllers = strings.Split(m.VFSOptions, ",")
		}
		c.hierarchies = append(c.hierarchies, h)
	}
	if len(c.hierarchies) == 0 {
		return c, errors.New("no cgroup hierarchy is mounted; mount cgroup2 on /sys/fs/cgroup")
	}
	c.hybrid = unified && legacy
	if memory := c.controller("memory"); memory != "" {
		_, err := os.Stat(filepath.Join(memory, "memory.memsw.limit_in_bytes"))
		c.swap = err == nil
	}
	return c, nil
}

// unifiedOnly says whether version 2 has the controllers.
func (c cgroups) unifiedOnly() bool {
	return !slices.ContainsFunc(c.hierarchies, func(h hierarchy) bool { return !h.unified })
}

// controller is where version 1 has a controller mounted, or empty.
func (c cgroups) controller(name string) string {
	for _, h := range c.hierarchies {
		if !h.unified && slices.Contains(h.controllers, name) {
			return h.mountpoint
		}
	}
	return ""
}

// file is where an attribute of a group is, given its controller and name under
// version 1 and its name under version 2.
func (c cgroups) file(group, controller, legacy, unified string) string {
	if c.unifiedOnly() {
		return filepath.Join(c.hierarchies[0].mountpoint, group, unified)
	}
	return filepath.Join(c.controller(controller), group, legacy)
}

// kill ends every process of a group, in every hierarchy, and waits for their
// end.
func (c cgroups) kill(ctx context.Context, group string) error {
	// Whatever still forks must not win against the loop below.
	_ = writeExisting(c.file(group, "pids", "pids.max", "pids.max"), "0")
	for {
		pids, err := c.processes(group)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		handles := make([]*os.File, 0, len(pids))
		for _, pid := range pids {
			fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				return fmt.Errorf("open process %d: %w", pid, err)
			}
			handles = append(handles, os.NewFile(uintptr(fd), "pidfd"))
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		var errs []error
		for _, handle := range handles {
			errs = append(errs, waitEnd(ctx, handle), handle.Close())
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("end processes of cgroup %s: %w", group, err)
		}
	}
}

// processes lists each process of a group and of the groups below it once.
func (c cgroups) processes(group string) ([]int, error) {
	var pids []int
	for _, h := range c.hierarchies {
		err := filepath.WalkDir(filepath.Join(h.mountpoint, group), func(path string, entry fs.DirEntry, err error) error {
			if groupIsGone(err) {
				return nil
			}
			if err != nil || entry.Name() != "cgroup.procs" {
				return err
			}
			data, err := os.ReadFile(path) //nolint:gosec // G122 is about links, and a cgroup file system holds none.
			if err != nil {
				if groupIsGone(err) {
					return nil
				}
				return err
			}
			for field := range strings.FieldsSeq(string(data)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					return fmt.Errorf("parse %s: %w", path, err)
				}
				// A zombie stays listed under version 1 in some kernels.
				if _, err := startTicks(pid); errors.Is(err, errProcessGone) {
					continue
				}
				pids = append(pids, pid)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of cgroup %s: %w", group, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// remove takes a group away, with the groups below it, in every hierarchy. The
// kernel needs a moment after the last process before it lets go. What joins
// meanwhile is ended, too: a runtime whose engine was killed may have been about
// to put its child there. Nothing can join what is removed.
func (c cgroups) remove(ctx context.Context, group string) error {
	for _, h := range c.hierarchies {
		dir := filepath.Join(h.mountpoint, group)
		for {
			err := removeGroup(dir)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("remove cgroup: %w", err)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("remove cgroup: %w: %w", err, ctx.Err())
			case <-time.After(time.Millisecond):
			}
			if err := c.kill(ctx, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeGroup answers EBUSY while there are processes.
func removeGroup(dir string) error {
	err := unix.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EBUSY):
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeGroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// capCPU limits a group to so many thousandths of a CPU; 0 leaves it without a
// limit. It is applied when the guest is up and before the workload starts.
func (c cgroups) capCPU(group string, millis int64) error {
	const (
		period   = 100_000 // microseconds
		minQuota = 1_000   // the kernel's
		perCPU   = 1000
	)
	if millis == 0 {
		return nil
	}
	quota := strconv.FormatInt(max(millis*period/perCPU, minQuota), 10)
	over := strconv.Itoa(period)
	var err error
	if c.unifiedOnly() {
		err = writeExisting(c.file(group, "", "", "cpu.max"), quota+" "+over)
	} else {
		err = errors.Join(
			writeExisting(c.file(group, "cpu", "cpu.cfs_period_us", ""), over),
			writeExisting(c.file(group, "cpu", "cpu.cfs_quota_us", ""), quota),
		)
	}
	if err != nil {
		return fmt.Errorf("limit CPU time: %w", err)
	}
	return nil
}

// usage measures a group; what the machine does not account for stays 0.
func (c cgroups) usage(group string) (engine.Usage, error) {
	var u engine.Usage
	var err error
	if c.unifiedOnly() {
		var micros int64
		micros, err = readKey(c.file(group, "", "", "cpu.stat"), "usage_usec")
		u.CPUNanos = micros * 1000
	} else {
		u.CPUNanos, err = readNumber(c.file(group, "cpuacct", "cpuacct.usage", ""))
	}
	errs := []error{err}
	u.MemoryBytes, err = readNumber(c.file(group, "memory", "memory.usage_in_bytes", "memory.current"))
	errs = append(errs, err)
	u.Pids, err = readNumber(c.file(group, "pids", "pids.current", "pids.current"))
	errs = append(errs, err)
	u.OOMKills, err = c.oomKills(group)
	errs = append(errs, err)
	return u, errors.Join(errs...)
}

// groupIsGone tells that a group was removed: before its file was opened, or
// (ENODEV) between that and the read.
func groupIsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// oomKills is how many processes of a group were killed for want of memory.
func (c cgroups) oomKills(group string) (int64, error) {
	return readKey(c.file(group, "memory", "memory.oom_control", "memory.events"), "oom_kill")
}

func writeExisting(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse %s: %w", path, err)
	}
	return n, nil
}

// readKey reads one value of a file of "key value" lines; 0 when it has none.
func readKey(path, key string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), key+" "); ok {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, lines.Err()
}
