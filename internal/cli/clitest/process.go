package clitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"github.com/creack/pty"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

type execStream = connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]

// process is one command and its ends of the stream.
type process struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	// terminal is nil without a tty.
	terminal *os.File
	stream   *execStream
	sending  sync.Mutex
}

func runProcess(ctx context.Context, init *sandboxv1.ExecStreamInit, stream *execStream, started func(*sandboxv1.ExecStreamInit) error) error {
	p := &process{stream: stream, command: exec.CommandContext(ctx, init.GetCommand()[0], init.GetCommand()[1:]...)}
	p.command.Env = append(os.Environ(), "SANDBOX=1")
	for name, value := range init.GetEnv() {
		p.command.Env = append(p.command.Env, name+"="+value)
	}
	p.command.Cancel = func() error { return syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL) }

	outputs, err := p.start(init)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		_ = p.send(output(sandboxv1.ExecStreamOutput_STREAM_STDERR, []byte(init.GetCommand()[0]+": not found\n")))
		return p.send(exit(127))
	}
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	if err := p.send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Ready{Ready: &sandboxv1.ExecStreamReady{}}}); err != nil {
		return err
	}
	if started != nil {
		if err := started(init); err != nil {
			_ = p.command.Cancel()
			_ = p.command.Wait()
			return err
		}
	}
	var copying sync.WaitGroup
	for name, reader := range outputs {
		copying.Go(func() { p.copyOutput(name, reader) })
	}
	// Ends when the client has closed its side, or the call is over.
	go p.receiveInput()

	copying.Wait()
	err = p.command.Wait()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed) && failed.ExitCode() < 0:
		return p.send(exit(128 + int(failed.Sys().(syscall.WaitStatus).Signal())))
	case errors.As(err, &failed):
		return p.send(exit(failed.ExitCode()))
	case err != nil:
		return fmt.Errorf("wait for the command: %w", err)
	}
	return p.send(exit(0))
}

func (p *process) start(init *sandboxv1.ExecStreamInit) (map[sandboxv1.ExecStreamOutput_Stream]io.Reader, error) {
	if init.GetTty() {
		size := &pty.Winsize{Cols: uint16(init.GetTtyWidth()), Rows: uint16(init.GetTtyHeight())}
		terminal, err := pty.StartWithSize(p.command, size)
		if err != nil {
			return nil, err
		}
		p.terminal, p.stdin = terminal, terminal
		return map[sandboxv1.ExecStreamOutput_Stream]io.Reader{sandboxv1.ExecStreamOutput_STREAM_STDOUT: terminal}, nil
	}
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.stdin, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := p.command.StderrPipe()
	if err != nil {
		return nil, err
	}
	return map[sandboxv1.ExecStreamOutput_Stream]io.Reader{
		sandboxv1.ExecStreamOutput_STREAM_STDOUT: stdout,
		sandboxv1.ExecStreamOutput_STREAM_STDERR: stderr,
	}, p.command.Start()
}

func (p *process) send(response *sandboxv1.ExecStreamResponse) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	return p.stream.Send(response)
}

func (p *process) copyOutput(name sandboxv1.ExecStreamOutput_Stream, reader io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := reader.Read(buffer)
		if n > 0 && p.send(output(name, buffer[:n])) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

func (p *process) receiveInput() {
	for {
		request, err := p.stream.Receive()
		if err != nil {
			_ = p.closeInput()
			return
		}
		switch message := request.GetMessage().(type) {
		case *sandboxv1.ExecStreamRequest_Stdin:
			_, _ = p.stdin.Write(message.Stdin)
		case *sandboxv1.ExecStreamRequest_Close:
			_ = p.closeInput()
		case *sandboxv1.ExecStreamRequest_Resize:
			_ = pty.Setsize(p.terminal, &pty.Winsize{Cols: uint16(message.Resize.GetWidth()), Rows: uint16(message.Resize.GetHeight())})
		}
	}
}

func (p *process) closeInput() error {
	if p.terminal == nil {
		return p.stdin.Close()
	}
	const endOfTransmission = "\x04"
	_, err := io.WriteString(p.terminal, endOfTransmission)
	return err
}

func output(name sandboxv1.ExecStreamOutput_Stream, data []byte) *sandboxv1.ExecStreamResponse {
	return &sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Output{Output: &sandboxv1.ExecStreamOutput{Stream: name, Data: data}}}
}

func exit(code int) *sandboxv1.ExecStreamResponse {
	return &sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Exit{Exit: &sandboxv1.ExecStreamExit{ExitCode: int32(code)}}}
}
