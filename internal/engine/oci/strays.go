package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// killRuntimeProcesses ends the runtime's processes whose command line names a
// sandbox's directory: what a runtime forks before it has put it into the
// cgroup. It looks at every process of the host, so it is for sandboxes that are
// half made. It looks again until it finds none, as a process may fork while the
// others are looked at.
func killRuntimeProcesses(ctx context.Context, dir string) error {
	for {
		strays, err := runtimeProcesses(dir)
		if err != nil || len(strays) == 0 {
			return err
		}
		var errs []error
		for _, stray := range strays {
			if err := stray.kill(ctx); err != nil {
				errs = append(errs, fmt.Errorf("end stray process %d: %w", stray.PID, err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
}

func runtimeProcesses(dir string) ([]process, error) {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var strays []process
	for _, path := range commands {
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			return nil, err
		}
		if !isRuntimeAt(pid, dir) {
			continue
		}
		found, err := identify(pid)
		if errors.Is(err, errProcessGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// The PID may have changed hands between the two.
		if isRuntimeAt(pid, dir) {
			strays = append(strays, found)
		}
	}
	return strays, nil
}

// isRuntimeAt goes by the command line alone, as a runtime may run from a copy of
// its binary in memory. It leaves alone whatever else names the directory.
func isRuntimeAt(pid int, dir string) bool {
	command, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !bytes.Contains(command, []byte(dir+"/")) {
		return false
	}
	program, _, _ := strings.Cut(string(command), "\x00")
	return slices.ContainsFunc(runtimeKinds(), func(kind runtimeKind) bool {
		return strings.HasPrefix(filepath.Base(program), kind.name)
	})
}
