package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// patience bounds what a refused connection may take. It decides nothing but
// how long a failing test runs.
const patience = 5 * time.Second

func probe(args []string) error {
	probes := map[string]func([]string) error{
		"true":    func([]string) error { return nil },
		"read":    readFile,
		"write":   writeFile,
		"list":    listDir,
		"connect": connect,
		"send":    sendFrom,
		"forks":   forks,
		"hold":    hold,
		"fill":    fillFile,
		"keep":    keepUnnamed,
		"nest":    nest,
		"touch":   touchMemory,
		"burn":    burnCPU,
		"mount":   mountTmpfs,
		"device":  openDevice,
		"socket":  listenUnix,
		"dial":    dialUnix,
		"whoami":  hostname,
	}
	if len(args) == 0 || probes[args[0]] == nil {
		return fmt.Errorf("no such probe: %q", args)
	}
	return probes[args[0]](args[1:])
}

func readFile(args []string) error {
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(data)
	return err
}

func writeFile(args []string) error { return os.WriteFile(args[0], []byte("x"), 0o600) }

func listDir(args []string) error {
	entries, err := os.ReadDir(args[0])
	for _, entry := range entries {
		fmt.Println(entry.Name())
	}
	return err
}

func hostname([]string) error {
	name, err := os.Hostname()
	fmt.Println(name)
	return err
}

// connect sends a line over "tcp" or "udp" and prints the answer. A third
// argument is the source address of a UDP packet.
func connect(args []string) error {
	dialer := net.Dialer{Timeout: patience}
	if len(args) > 2 {
		dialer.LocalAddr = &net.UDPAddr{IP: net.ParseIP(args[2])}
	}
	conn, err := dialer.Dial(args[0], args[1])
	if err != nil {
		return err
	}
	defer conn.Close()
	return exchange(conn)
}

func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(answer[:n])
	return err
}

// sendFrom takes a source address that is not the sandbox's and sends one
// datagram from it. It needs CAP_NET_ADMIN.
func sendFrom(args []string) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	source := net.ParseIP(args[0])
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: source, Mask: net.CIDRMask(32, 32)}}); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	destination, err := net.ResolveUDPAddr("udp", args[1])
	if err != nil {
		return err
	}
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: source}, destination)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, args[2]+"\n")
	return err
}

// forks starts processes until it has enough or is refused, and prints how many
// it had.
func forks(args []string) error {
	want, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var started []*exec.Cmd
	var refused error
	for range want {
		cmd := exec.Command("/.sandbar/guest", "hold")
		if refused = cmd.Start(); refused != nil {
			break
		}
		started = append(started, cmd)
	}
	for _, cmd := range started {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	fmt.Println(len(started))
	return refused
}

func hold([]string) error { select {} }

// fillFile writes so many MiB to a file.
func fillFile(args []string) error {
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer file.Close()
	return fill(file, args[1])
}

func fill(file *os.File, mebibytes string) error {
	count, err := strconv.Atoi(mebibytes)
	if err != nil {
		return err
	}
	chunk := bytes.Repeat([]byte{1}, 1<<20)
	for range count {
		if _, err := file.Write(chunk); err != nil {
			return err
		}
	}
	return file.Sync()
}

// keepUnnamed writes so many MiB to a file without a name, and keeps it open
// until there is a file of the name "release". It makes "kept" when it has
// written.
func keepUnnamed(args []string) error {
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer file.Close()
	if err := os.Remove(args[0]); err != nil {
		return err
	}
	if err := fill(file, args[1]); err != nil {
		return err
	}
	if err := os.WriteFile("/kept", nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat("/release"); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// nest makes so many directories within each other, and a file of 1 MiB in the
// last of them.
func nest(args []string) error {
	depth, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for range depth {
		const name = "a-directory-with-a-name-of-forty-characters"
		if err := errors.Join(os.Mkdir(name, 0o700), os.Chdir(name)); err != nil {
			return err
		}
	}
	return fillFile([]string{"last", "1"})
}

// touchMemory writes to so many MiB.
func touchMemory(args []string) error {
	mebibytes, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	const page = 4096
	memory, err := syscall.Mmap(-1, 0, mebibytes<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	for i := 0; i < len(memory); i += page {
		memory[i] = 1
	}
	fmt.Println("touched")
	return nil
}

// burnCPU keeps one CPU busy for so long.
func burnCPU(args []string) error {
	want, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < want; {
	}
	return nil
}

func mountTmpfs(args []string) error { return syscall.Mount("none", args[0], "tmpfs", 0, "") }

// openDevice makes a device node and opens it.
func openDevice(args []string) error {
	major, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	path := filepath.Join("/", "device-"+args[0])
	if err := syscall.Mknod(path, syscall.S_IFBLK|0o600, major<<8); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

func listenUnix(args []string) error {
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	return listener.Close()
}

func dialUnix(args []string) error {
	conn, err := net.DialTimeout("unix", args[0], patience)
	if err != nil {
		return err
	}
	return conn.Close()
}
