// Command intruder is a hostile workload: run in a sandbox by the guest's
// tests, it tries what it can to get at another process of the sandbox and at
// the guest's socket. It prints a line for everything that worked.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Println("usage: intruder PID")
		os.Exit(2)
	}
	pid, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	// ptrace belongs to a thread.
	runtime.LockOSThread()
	readFiles(pid)
	openDescriptors(pid)
	takeDescriptors(pid)
	readMemory(pid)
	attach(pid)
	connect(context.Background())
}

// readFiles reads what /proc tells of a process's insides.
func readFiles(pid int) {
	for _, name := range []string{"environ", "auxv", "maps", "smaps", "pagemap", "syscall", "stack", "task/" + strconv.Itoa(pid) + "/environ"} {
		path := inProc(pid, name)
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		if n, _ := file.Read(make([]byte, 64)); n > 0 {
			fmt.Println("read", path)
		}
		_ = file.Close()
	}
	for _, name := range []string{"root", "cwd", "exe"} {
		if target, err := os.Readlink(inProc(pid, name)); err == nil {
			fmt.Println("followed", inProc(pid, name), "to", target)
		}
	}
	for _, name := range []string{"mem", "task/" + strconv.Itoa(pid) + "/mem"} {
		if file, err := os.OpenFile(inProc(pid, name), os.O_RDWR, 0); err == nil {
			fmt.Println("opened", file.Name())
			_ = file.Close()
		}
	}
}

// openDescriptors opens what /proc lists, and what it may not list.
func openDescriptors(pid int) {
	for fd := range 64 {
		path := inProc(pid, "fd/"+strconv.Itoa(fd))
		if target, err := os.Readlink(path); err == nil {
			fmt.Println("followed", path, "to", target)
		}
		if opened, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			fmt.Println("opened", path)
			_ = unix.Close(opened)
		}
	}
}

func takeDescriptors(pid int) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(process) }()
	for fd := range 64 {
		if taken, err := unix.PidfdGetfd(process, fd, 0); err == nil {
			fmt.Println("took descriptor", fd)
			_ = unix.Close(taken)
		}
	}
}

func readMemory(pid int) {
	// Where Go programs and most others that are not position independent lie;
	// being allowed at all shows in another error than EPERM.
	const address = 0x400000
	local := make([]byte, 16)
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &local[0], Len: 16}}, []unix.RemoteIovec{{Base: address, Len: 16}}, 0)
	if err == nil || err == unix.EFAULT {
		fmt.Println("read memory")
	}
}

func attach(pid int) {
	if unix.PtraceSeize(pid) == nil {
		fmt.Println("seized")
		_ = unix.PtraceDetach(pid)
	}
	if unix.PtraceAttach(pid) == nil {
		fmt.Println("attached")
		_, _ = unix.Wait4(pid, nil, unix.WALL, nil)
		_ = unix.PtraceDetach(pid)
	}
}

// connect tries every socket that has a name, and the names it might have.
func connect(ctx context.Context) {
	names := []string{"/.sandbar/guest.sock", "@/.sandbar/guest.sock", "/proc/1/root/.sandbar/guest.sock", "/proc/1/cwd/.sandbar/guest.sock"}
	if found, err := filepath.Glob("/.sandbar/*"); err == nil {
		names = append(names, found...)
	}
	if table, err := os.ReadFile("/proc/net/unix"); err == nil {
		for line := range strings.Lines(string(table)) {
			if fields := strings.Fields(line); len(fields) == 8 {
				names = append(names, fields[7])
			}
		}
	}
	for _, name := range names {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", name); err == nil {
			fmt.Println("connected to", name)
			_ = conn.Close()
		}
	}
}

func inProc(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}
