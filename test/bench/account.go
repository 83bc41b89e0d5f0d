package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// account reads what the kernel knows of the CPU time and memory of everything
// that belongs to the benchmark: it is in a cgroup of its own, and so are its
// runtimes, and the containers are in others, which it can tell from those that
// were there before.
//
// It works with cgroup version 1 and 2.
type account struct {
	group string
	// cpu and memory are where the hierarchies are mounted; the same under
	// version 2.
	cpu, memory string
	unified     bool
	// before are the groups that are not the benchmark's.
	before []string
}

func openAccount() (*account, error) {
	a := &account{group: fmt.Sprintf("sandbar-bench-%d", os.Getpid())}
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	a.unified = err == nil
	a.cpu, a.memory = filepath.Join(cgroupRoot, "cpuacct"), filepath.Join(cgroupRoot, "memory")
	if a.unified {
		a.cpu, a.memory = cgroupRoot, cgroupRoot
	}
	if a.before, err = groupsBelow(a.cpu); err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	if err := os.Mkdir(a.own(), 0o755); err != nil {
		return nil, fmt.Errorf("make the benchmark's cgroup: %w", err)
	}
	if err := enter(a.own()); err != nil {
		return nil, errors.Join(err, os.Remove(a.own()))
	}
	return a, nil
}

// own is where the benchmark itself is: below the group that it shares with the
// bare runtime's containers.
func (a *account) own() string { return filepath.Join(a.cpu, a.group+"-self") }

func enter(group string) error {
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// close leaves the group. The children have ended, but the kernel needs a
// moment to let go of them.
func (a *account) close() error {
	if err := enter(a.cpu); err != nil {
		return err
	}
	return removeGroup(a.own())
}

// removeGroup removes a cgroup, if it is there, once the kernel lets go of it.
func removeGroup(path string) error {
	const patience = 5 * time.Second
	for begin := time.Now(); ; {
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Since(begin) > patience {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func groupsBelow(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// ours are the benchmark's groups: new ones that bear Sandbar's name.
func (a *account) ours() ([]string, error) {
	names, err := groupsBelow(a.cpu)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "sandbar-") || slices.Contains(a.before, name)
	}), nil
}

// cpuMilliseconds is the CPU time that everything of the benchmark has used.
func (a *account) cpuMilliseconds() (float64, error) {
	groups, err := a.ours()
	if err != nil {
		return 0, err
	}
	var total float64
	for _, group := range groups {
		var used float64
		if a.unified {
			micros, err := readKey(filepath.Join(a.cpu, group, "cpu.stat"), "usage_usec")
			if err != nil {
				return 0, err
			}
			used = micros / 1000
		} else {
			nanos, err := readNumber(filepath.Join(a.cpu, group, "cpuacct.usage"))
			if err != nil {
				return 0, err
			}
			used = nanos / 1e6
		}
		total += used
	}
	return total, nil
}

// memoryMiB is the memory of the containers with these ids, and of every other
// process that the benchmark has started: the proportional share of each, and
// what the kernel charges the containers for itself.
func (a *account) memoryMiB(ids []string) (float64, error) {
	groups, err := a.ours()
	if err != nil {
		return 0, err
	}
	total, err := processesMiB(filepath.Join(a.own(), "cgroup.procs"))
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		found := false
		for _, group := range groups {
			used, err := a.containerMiB(filepath.Join(group, id))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return 0, err
			}
			found, total = true, total+used
		}
		if !found {
			return 0, fmt.Errorf("container %s has no cgroup", id)
		}
	}
	return total, nil
}

func (a *account) containerMiB(group string) (float64, error) {
	processes, err := processesMiB(filepath.Join(a.memory, group, "cgroup.procs"))
	if err != nil {
		return 0, err
	}
	var kernel float64
	if a.unified {
		kernel, err = readKey(filepath.Join(a.memory, group, "memory.stat"), "kernel")
	} else {
		kernel, err = readNumber(filepath.Join(a.memory, group, "memory.kmem.usage_in_bytes"))
	}
	return processes + kernel/(1<<20), err
}

// processesMiB adds up the processes of a list, without this one.
func processesMiB(list string) (float64, error) {
	data, err := os.ReadFile(list)
	if err != nil {
		return 0, err
	}
	var total float64
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		if pid == os.Getpid() {
			continue
		}
		share, err := proportionalMiB(pid)
		if err != nil {
			return 0, err
		}
		total += share
	}
	return total, nil
}

// proportionalMiB is a process's memory, with what it shares divided by how many
// share it.
func proportionalMiB(pid int) (float64, error) {
	kib, err := readKey(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
	return kib / 1024, err
}

func readNumber(path string) (float64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
}

// readKey reads the number that follows a key at the beginning of a line.
func readKey(path, key string) (float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == key {
			return strconv.ParseFloat(fields[1], 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, key)
}
