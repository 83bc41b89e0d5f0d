package tunnel

import (
	"bufio"
	"net"
	"sync"
)

// upgradedConn is a connection whose first bytes may have been read already,
// and which says when it has been closed by whomever. It hides what is under
// it, so that HTTP/2 does not look at TLS's negotiated protocol, which was
// http/1.1.
type upgradedConn struct {
	net.Conn
	buffered *bufio.Reader

	once   sync.Once
	err    error
	closed chan struct{}
}

func newUpgradedConn(conn net.Conn, buffered *bufio.Reader) *upgradedConn {
	return &upgradedConn{Conn: conn, buffered: buffered, closed: make(chan struct{})}
}

// Read is called by one goroutine only, as HTTP/2 does.
func (c *upgradedConn) Read(p []byte) (int, error) {
	if c.buffered != nil {
		if n := c.buffered.Buffered(); n > 0 {
			return c.buffered.Read(p[:min(len(p), n)])
		}
		c.buffered = nil
	}
	return c.Conn.Read(p)
}

func (c *upgradedConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.err = c.Conn.Close()
	})
	return c.err
}
