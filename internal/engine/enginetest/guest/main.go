// Command guest is the guest of the conformance suite: PID 1 of a sandbox, which
// runs programs that the suite names. It is also those programs: started with
// the name of a probe, it tries something and prints what came of it.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
)

// request asks for one program to be run.
type request struct {
	Argv []string `json:"argv"`
	// Shutdown ends the guest.
	Shutdown bool `json:"shutdown"`
}

// response tells of its end.
type response struct {
	Output string `json:"output"`
	Code   int    `json:"code"`
	Error  string `json:"error"`
}

func main() {
	socket := flag.String("socket", "", "listen on this unix socket")
	flag.Parse()
	run := func() error { return serve(*socket) }
	if *socket == "" {
		run = func() error { return probe(flag.Args()) }
	}
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func serve(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		calls.Go(func() { answer(conn) })
	}
}

func answer(conn net.Conn) {
	defer conn.Close()
	var asked request
	if err := json.NewDecoder(conn).Decode(&asked); err != nil {
		return
	}
	if asked.Shutdown {
		os.Exit(0)
	}
	_ = json.NewEncoder(conn).Encode(execute(asked.Argv))
}

func execute(argv []string) response {
	output, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return response{Output: string(output)}
	case errors.As(err, &exit):
		return response{Output: string(output), Code: exit.ExitCode()}
	default:
		return response{Output: string(output), Code: -1, Error: err.Error()}
	}
}
