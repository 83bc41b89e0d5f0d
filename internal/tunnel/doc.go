// Package tunnel is the reverse connection between a runner and the gateway.
//
// The runner dials out: one HTTP/1.1 request asks to upgrade the connection to
// sandbar-tunnel, and once that is granted the two ends change roles. The
// runner serves HTTP/2 over the connection and the gateway makes requests, so
// that no port of the runner's needs to be reachable.
//
//	runner                                         gateway
//	POST /sandbar/tunnel HTTP/1.1
//	Connection: Upgrade, Upgrade: sandbar-tunnel
//	Authorization: Bearer CREDENTIAL        ─────▶
//	                                        ◀───── 101 Switching Protocols
//	                                        ◀───── HTTP/2 preface, requests
//	SETTINGS, responses                     ─────▶
//
// Both ends send HTTP/2 pings when a connection is silent and give it up when
// they stay unanswered. Flow control is HTTP/2's: a stream that nobody reads
// holds at most streamWindow bytes and does not slow down the others.
//
// Serve keeps a runner connected: it dials again, with growing pauses, until
// its context ends or the server says that the credential is not known.
//
// Invariants: when a connection ends, every stream on it ends; Serve returns
// only after every handler it started has returned.
//
// It must not know what is said over the connection.
package tunnel

import (
	"errors"
	"fmt"
	"time"
)

// Path is where the gateway takes tunnels.
const Path = "/sandbar/tunnel"

// Protocol is the token of the Upgrade header.
const Protocol = "sandbar-tunnel"

const (
	// streamWindow is how many bytes of one stream may be on their way or
	// unread, in each direction.
	streamWindow = 1 << 20
	// connectionWindow is the same for all streams together; so large that
	// streams which nobody reads do not hold up the others.
	connectionWindow = 1 << 30
	// frameSize is the largest frame that the runner takes. The gateway keeps a
	// buffer of this size for every stream that it still sends on.
	frameSize = 32 << 10
	// maxStreams is how many streams one connection carries at once.
	maxStreams = 100_000

	// defaultSilence is how long a connection may be silent before it is pinged.
	defaultSilence = 10 * time.Second
	// defaultPingTimeout is how long a ping may stay unanswered.
	defaultPingTimeout = 5 * time.Second
	// handshakeTimeout bounds dialling, TLS and the upgrade together.
	handshakeTimeout = 15 * time.Second
)

// ErrUnauthorized says that the gateway does not know the credential. The
// function that authenticates wraps it to refuse a runner with 401; Serve
// returns it, wrapped, on the other side.
var ErrUnauthorized = errors.New("the credential is not known")

// RefusedError is a gateway's answer to an upgrade request that is neither
// consent nor 401.
type RefusedError struct {
	// StatusCode is of the HTTP response.
	StatusCode int
	// Message is the beginning of its body.
	Message string
}

// Error names status and message.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the server refused the tunnel with HTTP status %d: %s", e.StatusCode, e.Message)
}

// Keepalive says how a dead peer is found. The zero value means 10 s and 5 s.
type Keepalive struct {
	// Silence is how long nothing may arrive before a ping is sent.
	Silence time.Duration
	// PingTimeout is how long the answer may take.
	PingTimeout time.Duration
}

func (k Keepalive) withDefaults() Keepalive {
	if k.Silence <= 0 {
		k.Silence = defaultSilence
	}
	if k.PingTimeout <= 0 {
		k.PingTimeout = defaultPingTimeout
	}
	return k
}
