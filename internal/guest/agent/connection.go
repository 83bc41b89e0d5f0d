package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

// lingerTime is how long a peer may still send after the last answer. Closing
// with bytes unread could take the answer away from it.
const lingerTime = time.Second

// connection is one call. read belongs to one goroutine; write is safe from
// several.
type connection struct {
	conn   net.Conn
	reader *guest.Reader

	mu     sync.Mutex
	writer *guest.Writer
}

func newConnection(conn net.Conn) *connection {
	return &connection{conn: conn, reader: guest.NewReader(conn), writer: guest.NewWriter(conn)}
}

// read reads the next request; bytes in it are lent until the next read.
func (c *connection) read(request *guestv1.Request) error { return c.reader.ReadRequest(request) }

func (c *connection) write(response *guestv1.Response) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer.Write(response)
}

// finish sends the last answer and waits until the peer has closed, for
// lingerTime at most. No other goroutine may be reading.
func (c *connection) finish(response *guestv1.Response) {
	if c.sendLast(response) {
		c.discard()
	}
}

// finishWatched is finish for a connection that untilClosed reads.
func (c *connection) finishWatched(ctx context.Context, response *guestv1.Response) {
	if c.sendLast(response) {
		<-ctx.Done()
	}
}

// sendLast sends the last answer and reports whether that worked; whoever
// reads goes on for lingerTime at most.
func (c *connection) sendLast(response *guestv1.Response) bool {
	if err := c.write(response); err != nil {
		return false
	}
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	return c.conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil
}

func (c *connection) discard() {
	var buf [4 << 10]byte
	for {
		if _, err := c.conn.Read(buf[:]); err != nil {
			return
		}
	}
}

// untilClosed returns a context that ends with the connection, or as soon as
// the peer sends anything, which no call that uses it allows. The cancel
// function waits for the goroutine that reads.
func (c *connection) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		defer cancel()
		_ = c.read(&guestv1.Request{})
	}()
	return ctx, func() {
		_ = c.conn.SetReadDeadline(time.Unix(0, 1))
		<-finished
		cancel()
	}
}

// hungUp reports whether the peer has closed, even when it sent bytes before
// that are still unread.
func (c *connection) hungUp() bool {
	conn, ok := c.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0 && poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

func done() *guestv1.Response {
	return &guestv1.Response{Answer: &guestv1.Response_Done{Done: &guestv1.Done{}}}
}

// resultOf is the last answer of a call that ended with err: Done for nil.
func resultOf(err error) *guestv1.Response {
	if err == nil {
		return done()
	}
	answer := &guestv1.Error{Code: guestv1.Error_INTERNAL, Message: err.Error()}
	var refused *guest.Error
	if errors.As(err, &refused) {
		answer = &guestv1.Error{Code: refused.Code, Message: refused.Message, SizeBytes: refused.SizeBytes}
	}
	return &guestv1.Response{Answer: &guestv1.Response_Error{Error: answer}}
}

func invalid(format string, args ...any) error {
	return &guest.Error{Code: guestv1.Error_INVALID, Message: fmt.Sprintf(format, args...)}
}

func isTemporary(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ECONNABORTED)
}
