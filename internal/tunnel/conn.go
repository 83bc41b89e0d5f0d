package tunnel

import (
	"bufio"
	"net"
	"net/http"
	"sync"
)

// http2Only is HTTP/2 from the first byte on. TLS, where there is any, is
// below the connection that the two ends see.
func http2Only() *http.Protocols {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &protocols
}

// http2Config is what both ends do alike.
func http2Config(keepalive Keepalive) *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxReceiveBufferPerConnection: connectionWindow,
		MaxReceiveBufferPerStream:     streamWindow,
		SendPingTimeout:               keepalive.Silence,
		PingTimeout:                   keepalive.PingTimeout,
	}
}

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

// listener hands out the one connection there is to serve. Closing it leaves
// the connection open: a server that shuts down closes its listeners first and
// lets what runs on their connections finish.
type listener struct {
	conns  chan net.Conn
	addr   net.Addr
	once   sync.Once
	closed chan struct{}
}

func newListener(conn net.Conn) *listener {
	l := &listener{conns: make(chan net.Conn, 1), addr: conn.LocalAddr(), closed: make(chan struct{})}
	l.conns <- conn
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }
