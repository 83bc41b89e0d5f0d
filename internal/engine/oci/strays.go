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
// sandbox's directory: what a runtime forks before it has put it into the cgroup. It looks
// at every process of the host, so it is for sandboxes that are half made.
func killRuntimeProcesses(ctx context.Context, dir string) error {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range commands {
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte(dir+"/")) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			return err
		}
		stray, err := identify(pid)
		if errors.Is(err, errProcessGone) {
			continue
		}
		if err == nil && namesDirectory(stray, path, dir) {
			err = stray.kill(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("end stray process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// namesDirectory looks again, now that the process is known by more than its
// PID, and leaves alone whatever else reads there.
func namesDirectory(stray process, path, dir string) bool {
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(data, []byte(dir+"/")) {
		return false
	}
	binary, err := os.Readlink("/proc/" + strconv.Itoa(stray.PID) + "/exe")
	return err == nil && slices.ContainsFunc(runtimeKinds(), func(kind runtimeKind) bool {
		return strings.HasPrefix(filepath.Base(binary), kind.name)
	})
}
