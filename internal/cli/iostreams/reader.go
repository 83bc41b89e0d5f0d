package iostreams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Input reads the standard input so that the end of ctx ends a read that
// waits: a person who types nothing must not keep the program alive. Call
// close when done.
func (s *IO) Input(ctx context.Context) (reader io.Reader, closeInput func(), err error) {
	if s.inFile == nil {
		return s.In, func() {}, nil
	}
	wakeRead, wakeWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("prepare to read the standard input: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = wakeWrite.Close() })
	input := &interruptible{ctx: ctx, fd: int(s.inFile.Fd()), wake: int(wakeRead.Fd())}
	return input, func() {
		if stop() {
			_ = wakeWrite.Close()
		}
		_ = wakeRead.Close()
	}, nil
}

type interruptible struct {
	ctx  context.Context
	fd   int
	wake int
}

// Read is part of io.Reader.
func (r *interruptible) Read(buffer []byte) (int, error) {
	ready := []unix.PollFd{
		{Fd: int32(r.fd), Events: unix.POLLIN},
		{Fd: int32(r.wake), Events: unix.POLLIN},
	}
	for {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		_, err := unix.Poll(ready, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for the standard input: %w", err)
		}
		if ready[1].Revents != 0 {
			return 0, r.ctx.Err()
		}
		n, err := unix.Read(r.fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		// A pseudo terminal whose other end has gone answers EIO.
		case errors.Is(err, unix.EIO), err == nil && n == 0:
			return 0, io.EOF
		case err != nil:
			return 0, fmt.Errorf("read the standard input: %w", err)
		}
		return n, nil
	}
}
