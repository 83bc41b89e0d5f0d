package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// hangUpPause is how soon a connection's end is seen while the process does
// not read its stdin, and so nothing is read from the connection.
const hangUpPause = 200 * time.Millisecond

// execution is one process beside the main one, and the connection it is
// served on.
type execution struct {
	connection *connection
	reaper     *reaper
	process    *process
	stdio      *stdio
	tasks      sync.WaitGroup
	stdinEnded bool
}

// exec answers a whole Exec call.
func (a *Agent) exec(ctx context.Context, c *connection, request *guestv1.Exec) {
	if !a.workload.isRunning() {
		c.finish(resultOf(invalid("the main process does not run")))
		return
	}
	tty := request.GetProcess().GetTty()
	prog, err := newProgram(request.GetProcess())
	if err != nil {
		finishUnstarted(c, tty, err)
		return
	}
	e := &execution{connection: c, reaper: a.reaper}
	if tty {
		e.stdio, err = newTerminal(request.GetProcess().GetSize())
	} else {
		e.stdio, err = newPipes(request.GetStdin())
	}
	if err != nil {
		finishUnstarted(c, tty, err)
		return
	}
	defer e.stdio.closeAll()
	pumps, err := e.newPumps()
	if err != nil {
		finishUnstarted(c, tty, err)
		return
	}
	e.process, err = prog.run(a.reaper, e.stdio.child, tty)
	e.stdio.closeChild()
	if err != nil {
		finishUnstarted(c, tty, err)
		return
	}
	e.accompany(ctx, pumps)
}

// finishUnstarted ends the call of a process that never was, as a shell would
// report it.
func finishUnstarted(c *connection, tty bool, err error) {
	var cannot *cannotExecuteError
	switch {
	case errors.As(err, &cannot):
		stream, line := uint32(stderrStream), cannot.message+"\n"
		if tty {
			stream, line = stdoutStream, cannot.message+"\r\n"
		}
		if c.write(outputMessage(stream, []byte(line))) == nil {
			c.finish(exitResponse(exit{code: cannot.code, time: time.Now()}))
		}
	case errors.Is(err, errRefused):
		c.finish(resultOf(invalid("%v", err)))
	default:
		c.finish(resultOf(err))
	}
}

// accompany serves the process until it has ended and its output is
// delivered, or until the connection is lost and the process is killed.
func (e *execution) accompany(ctx context.Context, pumps []*pump) {
	started := &guestv1.Response{Answer: &guestv1.Response_Started{Started: &guestv1.Started{Pid: int32(e.process.pid)}}}
	lost := make(chan struct{})
	// A started message that cannot be sent is a lost connection, which the
	// first read tells.
	_ = e.connection.write(started)
	e.tasks.Go(func() {
		defer close(lost)
		e.receive()
	})
	var outputs sync.WaitGroup
	for _, p := range pumps {
		outputs.Go(func() { _ = p.run() })
	}
	select {
	case <-e.process.ended:
	case <-lost:
		e.reaper.killLineage(ctx, e.process)
	case <-ctx.Done():
	}
	for _, p := range pumps {
		p.expire()
	}
	outputs.Wait()
	select {
	case <-e.process.ended:
		// With the connection lost this fails, and nobody misses it.
		e.connection.sendLast(exitResponse(e.process.exit))
	default:
		_ = e.connection.conn.Close()
	}
	e.tasks.Wait()
}

func (e *execution) newPumps() ([]*pump, error) {
	send := func(stream uint32) func([]byte) error {
		return func(data []byte) error { return e.connection.write(outputMessage(stream, data)) }
	}
	stdout, err := newPump(e.stdio.stdout, send(stdoutStream))
	if err != nil || e.stdio.stderr == nil {
		return []*pump{stdout}, err
	}
	stderr, err := newPump(e.stdio.stderr, send(stderrStream))
	return []*pump{stdout, stderr}, err
}

// receive takes what the runner sends, until the connection ends or the
// runner breaks the protocol. After the process's end it drops everything.
func (e *execution) receive() {
	request := &guestv1.Request{}
	for {
		if err := e.connection.read(request); err != nil {
			return
		}
		switch call := request.GetCall().(type) {
		case *guestv1.Request_Stdin:
			if !e.writeStdin(call.Stdin) {
				return
			}
		case *guestv1.Request_CloseStdin:
			e.closeStdin()
		case *guestv1.Request_Resize:
			e.stdio.resize(call.Resize)
		default:
			return
		}
	}
}

// writeStdin blocks while the process does not read. It answers false when
// the connection has ended meanwhile. Bytes that nobody can read any more are
// dropped.
func (e *execution) writeStdin(data []byte) bool {
	if e.stdio.stdin == nil || e.stdinEnded {
		return true
	}
	for len(data) > 0 {
		_ = e.stdio.stdin.SetWriteDeadline(time.Now().Add(hangUpPause))
		n, err := e.stdio.stdin.Write(data)
		data = data[n:]
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if err != nil {
				return true
			}
			continue
		}
		if e.connection.hungUp() {
			return false
		}
		select {
		case <-e.process.ended:
			return true
		default:
		}
	}
	return true
}

func (e *execution) closeStdin() {
	if e.stdio.stdin == nil || e.stdinEnded {
		return
	}
	e.stdinEnded = true
	if e.stdio.isTerminal() {
		e.tasks.Go(func() { e.stdio.pressEndOfFile(e.process.ended) })
		return
	}
	_ = e.stdio.stdin.Close()
}

// killLineage kills p and everything that descends from it, and returns when
// it is gone, or after a time in which the kernel did not let go of it.
func (r *reaper) killLineage(ctx context.Context, p *process) {
	const giveUpAfter = 10 * time.Second
	until := time.Now().Add(giveUpAfter)
	for pause := time.Millisecond; time.Now().Before(until); pause = min(2*pause, 100*time.Millisecond) {
		found := r.killOnce(p)
		r.collect()
		if !found {
			return
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// killOnce sends SIGKILL to all that can be found of p's lineage and reports
// whether that was anything.
func (r *reaper) killOnce(p *process) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	alive := r.children[p.pid] == p
	if alive {
		// Its process group, also where /proc cannot be read.
		_ = unix.Kill(-p.pid, unix.SIGKILL)
	}
	descendants := r.lineage.descendants(p, alive)
	for _, pid := range descendants {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return alive || len(descendants) > 0
}

func outputMessage(stream uint32, data []byte) *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Output{Output: &guestv1.Output{Stream: stream, Data: data}}}
}

func exitResponse(e exit) *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Exit{Exit: exitMessage(e)}}
}
