package agent

import (
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const firstFreeDescriptor = 3

// Protect keeps the workload, which may run as the same user, away from this
// process: its memory, descriptors and environment cannot be read through
// /proc or ptrace, and no descriptor of it passes to a program that it starts.
// It also sets the mask for new files that programs expect.
func Protect() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the process: %w", err)
	}
	if err := closeDescriptorsOnExec(); err != nil {
		return fmt.Errorf("keep descriptors from programs: %w", err)
	}
	unix.Umask(0o022)
	return nil
}

func closeDescriptorsOnExec() error {
	err := unix.CloseRange(firstFreeDescriptor, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// Kernels before 5.11.
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd >= firstFreeDescriptor {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
