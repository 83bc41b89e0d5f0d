package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a runner's process, held by a descriptor that never means
// another one.
type process struct {
	Pid int `json:"pid"`
	// StartTicks is when it started, in clock ticks since boot (proc(5)), which
	// tells processes with the same number apart.
	StartTicks uint64 `json:"start_ticks"`

	pidfd int
	// collected is closed when a child of this server has been waited for; nil
	// for a process of an earlier server.
	collected chan struct{}
}

var errProcessGone = errors.New("the process is gone")

// openProcess answers errProcessGone when that process does not run any more.
func openProcess(pid int, startTicks uint64) (*process, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, errProcessGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// The descriptor holds the number; what it says now is of that process.
	ticks, err := startTicks64(pid)
	if err != nil || (startTicks != 0 && ticks != startTicks) {
		return nil, errors.Join(errProcessGone, unix.Close(pidfd))
	}
	return &process{Pid: pid, StartTicks: ticks, pidfd: pidfd}, nil
}

// startTicks64 answers errProcessGone for a process that has ended, collected
// or not.
func startTicks64(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, errProcessGone
	}
	// The command in parentheses may contain anything.
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, ')'):], []byte(" "))
	fields := strings.Fields(string(rest))
	const state, start = 0, 19
	if !ok || len(fields) <= start {
		return 0, fmt.Errorf("read /proc/%d/stat: unexpected form", pid)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, errProcessGone
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// find looks for the process that serves a revision: where it was written
// down, then among all processes. It answers errProcessGone.
func (f revisionFiles) find() (*process, error) {
	data, err := os.ReadFile(f.process())
	if err == nil {
		var noted process
		if json.Unmarshal(data, &noted) == nil && noted.Pid > 0 && f.isServedBy(noted.Pid) {
			found, err := openProcess(noted.Pid, noted.StartTicks)
			if err == nil || !errors.Is(err, errProcessGone) {
				return found, err
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the process file: %w", err)
	}
	return f.search()
}

// search finds a process that was started but not written down.
func (f revisionFiles) search() (*process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("search for the runner's process: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !f.isServedBy(pid) {
			continue
		}
		found, err := openProcess(pid, 0)
		if errors.Is(err, errProcessGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if f.isServedBy(pid) {
			return found, f.note(found)
		}
		found.release()
	}
	return nil, errProcessGone
}

// isServedBy says whether a process has the revision's command line.
func (f revisionFiles) isServedBy(pid int) bool {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	wanted := f.arguments()
	return len(args) == len(wanted)+1 && strings.Join(args[1:], "\x00") == strings.Join(wanted, "\x00")
}

func (f revisionFiles) arguments() []string {
	return []string{"runner", "serve", "--config", f.config()}
}

// note writes down which process serves the revision.
func (f revisionFiles) note(p *process) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the process file: %w", err)
	}
	_, err = replace(f.process(), data)
	return err
}

// start starts the revision's process in a session of its own. collect is
// given the function that waits for it.
func (f revisionFiles) start(executable string, env []string, limits cgroup, collect func(func())) (*process, error) {
	log, err := os.OpenFile(f.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the runner's log: %w", err)
	}
	defer log.Close()
	command := exec.Command(executable, f.arguments()...) //nolint:noctx // it outlives every context of the server
	command.Dir = string(f)
	command.Env = env
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	collected := make(chan struct{})
	collect(func() {
		defer close(collected)
		_ = command.Wait() // how it ended is in its log
	})
	started, err := openProcess(command.Process.Pid, 0)
	if err != nil {
		// It has ended already: there is nothing to hold.
		return nil, err
	}
	started.collected = collected
	return started, errors.Join(f.note(started), limits.add(started.Pid))
}

// wait answers nil when the process has ended.
func (p *process) wait(ctx context.Context) error {
	const poll = 100 // milliseconds; poll(2) has no way to end with a context
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, poll)
		switch {
		case n > 0:
			if p.collected != nil {
				<-p.collected
			}
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", p.Pid, err)
		}
	}
}

// end asks the process to end, and makes it after the grace.
func (p *process) end(ctx context.Context, grace time.Duration) error {
	for _, step := range []struct {
		signal unix.Signal
		within time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, grace}} {
		err := unix.PidfdSendSignal(p.pidfd, step.signal, nil, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d: %w", p.Pid, err)
		}
		bounded, cancel := context.WithTimeout(ctx, step.within)
		err = p.wait(bounded)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not end, even after SIGKILL", p.Pid)
}

func (p *process) release() { _ = unix.Close(p.pidfd) }
