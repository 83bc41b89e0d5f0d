package agent

import "sync"

// outputFrameBytes bounds the output in one message.
const outputFrameBytes = 32 << 10

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
