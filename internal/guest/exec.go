package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// ExecSession is one process beside the main one. Recv belongs to one
// goroutine; Write, CloseStdin, Resize and Close may be called from others.
type ExecSession struct {
	call    *call
	started *guestv1.Started

	// Of the goroutine that receives.
	pending *guestv1.Response
	failed  error
	ended   bool
	// gathered holds the data of an Output that several messages have brought.
	gathered []byte

	sendMu sync.Mutex
	// Reused for every chunk of stdin.
	stdin *guestv1.Request_Stdin
	chunk *guestv1.Request
}

// Exec starts a process and answers when it runs, or when it is certain that
// it never will: then Started is nil and Recv says why, as a shell would
// (an Output with the message, Exit 127 when there is no such program, 126
// when it cannot be executed).
//
// The session must be closed. Ending ctx closes it.
//
// Codes: INVALID (malformed, or the main process does not run).
func (c *Client) Exec(ctx context.Context, exec *guestv1.Exec) (*ExecSession, error) {
	call, err := c.open(ctx, "exec", &guestv1.Request{Call: &guestv1.Request_Exec{Exec: exec}})
	if err != nil {
		return nil, err
	}
	first, err := call.receive()
	if err != nil {
		call.close()
		return nil, err
	}
	stdin := &guestv1.Request_Stdin{}
	session := &ExecSession{call: call, started: first.GetStarted(), stdin: stdin, chunk: &guestv1.Request{Call: stdin}}
	if session.started == nil {
		session.pending = first
	}
	return session, nil
}

// Started says which process it is, in the sandbox's own numbers; nil when it
// could not be started.
func (s *ExecSession) Started() *guestv1.Started { return s.started }

// Recv returns the next response: Outputs (of at most MaxChunkBytes), then one
// Exit with which all output has been delivered, then io.EOF. An Output's data
// is only lent until the next Recv. Outputs that are there already come as one:
// to pass on a message costs much more than to copy it. As long as Recv is not
// called the process is slowed down, not buffered for.
func (s *ExecSession) Recv() (*guestv1.Response, error) {
	if s.ended {
		return nil, io.EOF
	}
	response, err := s.next()
	if err != nil {
		return nil, err
	}
	switch answer := response.GetAnswer().(type) {
	case *guestv1.Response_Output:
		if s.call.reader.Ready() {
			s.gather(answer.Output)
		}
	case *guestv1.Response_Exit:
		s.ended = true
	default:
		return nil, s.call.wrap(errUnexpected(response))
	}
	return response, nil
}

func (s *ExecSession) next() (*guestv1.Response, error) {
	response, err := s.pending, s.failed
	s.pending, s.failed = nil, nil
	if response == nil && err == nil {
		response, err = s.call.receiveLent()
	}
	return response, err
}

// gather adds to an Output what follows it on the same stream and is there
// already. What ends that is kept for the next Recv.
func (s *ExecSession) gather(output *guestv1.Output) {
	data := append(s.gathered[:0], output.GetData()...)
	for s.call.reader.Ready() {
		response, err := s.call.receiveLent()
		more := response.GetOutput()
		if more == nil || more.GetStream() != output.GetStream() || len(data)+len(more.GetData()) > MaxChunkBytes {
			s.pending, s.failed = response, err
			break
		}
		data = append(data, more.GetData()...)
	}
	s.gathered, output.Data = data, data
}

// Write sends bytes to the process's stdin and blocks while the process does
// not read. What is written after the process has ended is dropped without an
// error: Recv tells the end.
func (s *ExecSession) Write(p []byte) (int, error) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	written := 0
	for len(p) > 0 {
		n := min(len(p), MaxChunkBytes)
		s.stdin.Stdin = p[:n]
		err := s.sendLocked(s.chunk)
		s.stdin.Stdin = nil
		if err != nil {
			return written, err
		}
		written += n
		p = p[n:]
	}
	return written, nil
}

// CloseStdin is the end of stdin: EOF on a pipe, and on a terminal what its
// end-of-file key does. The process goes on.
func (s *ExecSession) CloseStdin() error {
	return s.send(&guestv1.Request{Call: &guestv1.Request_CloseStdin{CloseStdin: &guestv1.CloseStdin{}}})
}

// Resize changes the size of the process's terminal, if it has one.
func (s *ExecSession) Resize(columns, rows uint32) error {
	return s.send(&guestv1.Request{Call: &guestv1.Request_Resize{Resize: &guestv1.Resize{Columns: columns, Rows: rows}}})
}

// Close ends the session. Unless Recv has returned the Exit, the process and
// everything that descends from it is killed.
func (s *ExecSession) Close() error {
	s.call.close()
	return nil
}

func (s *ExecSession) send(request *guestv1.Request) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	return s.sendLocked(request)
}

func (s *ExecSession) sendLocked(request *guestv1.Request) error {
	err := ignoreDisconnect(s.call.send(request))
	if errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("guest exec: session closed: %w", err)
	}
	return err
}
