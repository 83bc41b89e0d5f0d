package agent

import (
	"sync"

	"github.com/sandbar-project/sandbar/internal/guest"
)

// outputFrameBytes bounds the output in one message; it is what a pipe holds.
const outputFrameBytes = guest.MaxChunkBytes

type buffer = [outputFrameBytes]byte

// buffers lends memory for the moment in which bytes move, so that a call that
// waits holds none.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) get() *buffer {
	if b, ok := p.pool.Get().(*buffer); ok {
		return b
	}
	return new(buffer)
}

func (p *bufferPool) put(b *buffer) { p.pool.Put(b) }
