// Package iostreams is the one place that knows of the terminal: which of the
// standard streams are one, its size, raw mode, colour and progress.
//
// Commands write through an IO and never to os.Stdout, so that a test can give
// them buffers. It must not import anything of the API.
package iostreams

import (
	"context"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// IO is what a command reads and writes.
type IO struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer

	// The files behind the streams; nil where there is none, as in tests.
	inFile  *os.File
	outFile *os.File
	errFile *os.File

	colour bool
}

// System is the process's own streams. getenv is asked for NO_COLOR and TERM.
func System(getenv func(string) string) *IO {
	streams := &IO{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		inFile: os.Stdin, outFile: os.Stdout, errFile: os.Stderr,
	}
	streams.colour = streams.wantsColour(getenv)
	return streams
}

func (s *IO) wantsColour(getenv func(string) string) bool {
	return s.ErrIsTerminal() && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Files makes an IO of open files, for example the ends of a pseudo terminal.
func Files(in, out, err *os.File) *IO {
	return &IO{In: in, Out: out, Err: err, inFile: in, outFile: out, errFile: err}
}

// Buffers makes an IO that is no terminal.
func Buffers(in io.Reader, out, err io.Writer) *IO {
	return &IO{In: in, Out: out, Err: err}
}

// InIsTerminal says whether a person types the input.
func (s *IO) InIsTerminal() bool { return isTerminal(s.inFile) }

// OutIsTerminal says whether a person reads the output.
func (s *IO) OutIsTerminal() bool { return isTerminal(s.outFile) }

// ErrIsTerminal says whether a person reads messages and progress.
func (s *IO) ErrIsTerminal() bool { return isTerminal(s.errFile) }

func isTerminal(file *os.File) bool {
	return file != nil && term.IsTerminal(int(file.Fd()))
}

// Red colours text for messages, where colour is wanted.
func (s *IO) Red(text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[31m" + text + "\x1b[0m"
}

// Size is of a terminal, in character cells; zero when unknown.
type Size struct {
	Width, Height uint32
}

// Size of the terminal that the output goes to.
func (s *IO) Size() Size {
	for _, file := range []*os.File{s.outFile, s.inFile} {
		if !isTerminal(file) {
			continue
		}
		width, height, err := term.GetSize(int(file.Fd()))
		if err == nil && width > 0 && height > 0 {
			return Size{Width: uint32(width), Height: uint32(height)}
		}
	}
	return Size{}
}

// Raw hands every key to the reader as it is typed, Ctrl-C included. The
// returned function puts the terminal back; it can be called more than once.
func (s *IO) Raw() (restore func(), err error) {
	if !s.InIsTerminal() {
		return func() {}, nil
	}
	fd := int(s.inFile.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, before) }, nil
}

// Resizes calls changed with each new size of the terminal, from this
// goroutine, until ctx ends.
func (s *IO) Resizes(ctx context.Context, changed func(Size)) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGWINCH)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			if size := s.Size(); size != (Size{}) {
				changed(size)
			}
		}
	}
}
