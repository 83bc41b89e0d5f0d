// Command sandbar-guest is PID 1 of every sandbox. It serves the guest
// protocol on a unix socket, and nothing else, until it is shut down.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/sandbar-project/sandbar/internal/guest/agent"
)

// Every sandbox pays for this process's memory, and it has little to do: a
// heap that is collected early and few threads cost nothing that one notices.
const (
	heapGrowthPercent = 25
	memoryLimitBytes  = 32 << 20
	maxProcessors     = 2
)

func main() {
	socket := flag.String("socket", "/.sandbar/guest.sock", "unix socket to serve on; it must not exist")
	flag.Parse()
	debug.SetGCPercent(heapGrowthPercent)
	debug.SetMemoryLimit(memoryLimitBytes)
	runtime.GOMAXPROCS(min(maxProcessors, runtime.GOMAXPROCS(0)))

	code, err := run(*socket)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandbar-guest: %v\n", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(socket string) (int, error) {
	if err := agent.Protect(); err != nil {
		return 0, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0, err
	}
	// The host moves the socket out of the workload's sight; whatever then has
	// its name is not ours.
	listener.SetUnlinkOnClose(false)
	guest := agent.New(agent.Config{Init: os.Getpid() == 1})
	err = guest.Serve(context.Background(), listener)
	return guest.ExitCode(), err
}
