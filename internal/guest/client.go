package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// DialFunc opens one connection to one sandbox's guest.
type DialFunc func(ctx context.Context) (net.Conn, error)

// Client calls the guest of one sandbox, with a connection per call. It holds
// nothing open between calls and is safe for concurrent use.
//
// Every method ends when its context ends, by closing the connection; the
// error is then the context's. What the guest refuses is an *Error; any other
// error means that the connection failed or the guest has gone.
type Client struct {
	dial DialFunc
}

// NewClient returns a Client that reaches the guest with dial.
func NewClient(dial DialFunc) *Client { return &Client{dial: dial} }

// Ping answers when the guest does.
func (c *Client) Ping(ctx context.Context) error {
	return c.callUntilDone(ctx, "ping", &guestv1.Request{Call: &guestv1.Request_Ping{Ping: &guestv1.Ping{}}})
}

// Start writes the files and starts the main process, once in a guest's life.
// It does not keep start. Files that do not fit into one message are written
// first, each with a call of its own; when one fails nothing is started.
//
// Codes: CANNOT_EXECUTE (program, user or working directory; the message says
// which), INVALID (malformed, or started before), and those of WriteFile.
func (c *Client) Start(ctx context.Context, start *guestv1.Start) error {
	request := &guestv1.Request{Call: &guestv1.Request_Start{Start: start}}
	if proto.Size(request) > MaxMessageBytes && len(start.GetFiles()) > 0 {
		for _, file := range start.GetFiles() {
			if err := c.writeFile(ctx, file); err != nil {
				return err
			}
		}
		request.Call = &guestv1.Request_Start{Start: &guestv1.Start{
			Process:     start.GetProcess(),
			Deadline:    start.GetDeadline(),
			GraceMillis: start.GetGraceMillis(),
		}}
	}
	if size := proto.Size(request); size > MaxMessageBytes {
		return &Error{
			Code:    guestv1.Error_INVALID,
			Message: fmt.Sprintf("arguments and environment take %d bytes, expected at most %d; pass large values as files", size, MaxMessageBytes),
		}
	}
	return c.callUntilDone(ctx, "start", request)
}

// Watch calls yield with the status now and at each change, in order, until
// the guest is shut down (nil) or yield fails (its error).
func (c *Client) Watch(ctx context.Context, yield func(*guestv1.Status) error) error {
	request := &guestv1.Request{Call: &guestv1.Request_Watch{Watch: &guestv1.Watch{}}}
	return c.callEach(ctx, "watch", request, func(response *guestv1.Response) error {
		status := response.GetStatus()
		if status == nil {
			return errUnexpected(response)
		}
		return yield(status)
	})
}

// FollowOutput calls yield with the main process's output from the byte at
// offset on, in order, until all of it has ended (nil) or yield fails (its
// error). What is no longer kept is counted in the next Output's Dropped.
// Outputs are not reused: yield may keep them.
func (c *Client) FollowOutput(ctx context.Context, offset uint64, yield func(*guestv1.Output) error) error {
	request := &guestv1.Request{Call: &guestv1.Request_FollowOutput{FollowOutput: &guestv1.FollowOutput{Offset: offset}}}
	return c.callEach(ctx, "follow output", request, func(response *guestv1.Response) error {
		output := response.GetOutput()
		if output == nil {
			return errUnexpected(response)
		}
		return yield(output)
	})
}

// Stop sends SIGTERM to the main process, SIGKILL to everything that is left
// after grace (at once when it is 0), and answers when only the guest is left.
// It does the same, and succeeds, for a main process that has ended.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	return c.callUntilDone(ctx, "stop", &guestv1.Request{Call: &guestv1.Request_Stop{
		Stop: &guestv1.Stop{GraceMillis: grace.Milliseconds()},
	}})
}

// Shutdown ends the guest, and with it the sandbox and everything in it. A
// guest that goes without saying so has obeyed too.
func (c *Client) Shutdown(ctx context.Context) error {
	err := c.callUntilDone(ctx, "shutdown", &guestv1.Request{Call: &guestv1.Request_Shutdown{Shutdown: &guestv1.Shutdown{}}})
	return ignoreDisconnect(err)
}

// callUntilDone makes a call that has no answer but Done or Error.
func (c *Client) callUntilDone(ctx context.Context, operation string, request *guestv1.Request) error {
	return c.callEach(ctx, operation, request, errUnexpected)
}

// callEach makes a call and hands every response before Done to yield.
func (c *Client) callEach(ctx context.Context, operation string, request *guestv1.Request, yield func(*guestv1.Response) error) error {
	call, err := c.open(ctx, operation, request)
	if err != nil {
		return err
	}
	defer call.close()
	for {
		response, err := call.receive()
		if err != nil {
			return err
		}
		if response.GetDone() != nil {
			return nil
		}
		if err := yield(response); err != nil {
			return err
		}
	}
}

// call is one connection with its request sent.
type call struct {
	ctx       context.Context
	operation string
	conn      net.Conn
	reader    *Reader
	writer    *Writer
	release   func() bool
}

func (c *Client) open(ctx context.Context, operation string, request *guestv1.Request) (*call, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("guest %s: dial: %w", operation, err)
	}
	call := &call{
		ctx:       ctx,
		operation: operation,
		conn:      conn,
		reader:    NewReader(conn),
		writer:    NewWriter(conn),
	}
	call.release = context.AfterFunc(ctx, func() { _ = conn.Close() })
	if err := call.send(request); err != nil {
		call.close()
		return nil, err
	}
	return call, nil
}

func (c *call) send(request *guestv1.Request) error {
	if err := c.writer.Write(request); err != nil {
		return c.wrap(err)
	}
	return nil
}

// receive returns the next response; a refusal is its error.
func (c *call) receive() (*guestv1.Response, error) {
	response := &guestv1.Response{}
	return c.answerOf(response, c.reader.Read(response))
}

// receiveLent is receive with the bytes of a stream only lent, until the next
// one.
func (c *call) receiveLent() (*guestv1.Response, error) {
	response := &guestv1.Response{}
	return c.answerOf(response, c.reader.ReadResponse(response))
}

// answerOf is what a response that was read with err says.
func (c *call) answerOf(response *guestv1.Response, err error) (*guestv1.Response, error) {
	if err != nil {
		if errors.Is(err, io.EOF) {
			// Every call has a last message; none came.
			err = io.ErrUnexpectedEOF
		}
		return nil, c.wrap(err)
	}
	if refusal := response.GetError(); refusal != nil {
		return nil, errorFrom(refusal)
	}
	return response, nil
}

func (c *call) wrap(err error) error {
	if c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	return fmt.Errorf("guest %s: %w", c.operation, err)
}

func (c *call) close() {
	c.release()
	_ = c.conn.Close()
}

func errUnexpected(response *guestv1.Response) error {
	return fmt.Errorf("%w: unexpected answer %T", ErrFraming, response.GetAnswer())
}
