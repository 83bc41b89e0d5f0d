package iostreams

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// terminal opens both ends of one: what a person sees and types at, and what
// the program has.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, program, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = person.Close()
		_ = program.Close()
	})
	return person, program
}

func pipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = read.Close()
		_ = write.Close()
	})
	return read, write
}

func TestEachStreamIsATerminalOrNotByItself(t *testing.T) {
	_, tty := terminal(t)
	read, write := pipe(t)
	for name, c := range map[string]struct {
		streams      *IO
		in, out, err bool
	}{
		"all are":     {Files(tty, tty, tty), true, true, true},
		"input only":  {Files(tty, write, write), true, false, false},
		"output only": {Files(read, tty, write), false, true, false},
		"errors only": {Files(read, write, tty), false, false, true},
		"none is":     {Files(read, write, write), false, false, false},
		"buffers":     {Buffers(strings.NewReader(""), io.Discard, io.Discard), false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if in, out, err := c.streams.InIsTerminal(), c.streams.OutIsTerminal(), c.streams.ErrIsTerminal(); in != c.in || out != c.out || err != c.err {
				t.Errorf("got %t, %t, %t; want %t, %t, %t", in, out, err, c.in, c.out, c.err)
			}
		})
	}
}

func TestColourIsForTerminalsThatWantIt(t *testing.T) {
	_, tty := terminal(t)
	_, write := pipe(t)
	for name, c := range map[string]struct {
		errors      *os.File
		environment map[string]string
		coloured    bool
	}{
		"a terminal":               {tty, nil, true},
		"a terminal with NO_COLOR": {tty, map[string]string{"NO_COLOR": "1"}, false},
		"a dumb terminal":          {tty, map[string]string{"TERM": "dumb"}, false},
		"a pipe":                   {write, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			streams := Files(tty, tty, c.errors)
			streams.colour = streams.wantsColour(func(name string) string { return c.environment[name] })
			if got := streams.Red("error:") != "error:"; got != c.coloured {
				t.Errorf("coloured: %t, want %t", got, c.coloured)
			}
		})
	}
}

func TestTheSizeIsThatOfTheOutputsTerminalOrElseTheInputs(t *testing.T) {
	person, tty := terminal(t)
	_, write := pipe(t)
	if err := pty.Setsize(person, &pty.Winsize{Cols: 101, Rows: 37}); err != nil {
		t.Fatal(err)
	}
	want := Size{Width: 101, Height: 37}
	for name, streams := range map[string]*IO{"output": Files(tty, tty, tty), "input": Files(tty, write, write)} {
		if got := streams.Size(); got != want {
			t.Errorf("with the %s a terminal the size is %v, want %v", name, got, want)
		}
	}
	if got := Buffers(nil, nil, nil).Size(); got != (Size{}) {
		t.Errorf("without a terminal the size is %v", got)
	}
}

func TestRawModePassesKeysAndIsTakenBack(t *testing.T) {
	_, tty := terminal(t)
	passesCtrlC := func() bool {
		t.Helper()
		settings, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return settings.Lflag&unix.ISIG == 0
	}
	restore, err := Files(tty, tty, tty).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if !passesCtrlC() {
		t.Error("in raw mode Ctrl-C is still a signal")
	}
	restore()
	restore()
	if passesCtrlC() {
		t.Error("the terminal was left in raw mode")
	}
	if _, err := Buffers(nil, nil, nil).Raw(); err != nil {
		t.Errorf("without a terminal: %v", err)
	}
}

func TestNewSizesAreTold(t *testing.T) {
	person, tty := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	sizes := make(chan Size)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Files(tty, tty, tty).Resizes(ctx, func(size Size) {
			select {
			case sizes <- size:
			case <-ctx.Done():
			}
		})
	}()
	if err := pty.Setsize(person, &pty.Winsize{Cols: 99, Rows: 33}); err != nil {
		t.Fatal(err)
	}
	// The signal goes to who has it as its own terminal; this program has not.
	// It is sent until it is heeded, since that may begin only now.
	for told := false; !told; {
		if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
			t.Fatal(err)
		}
		select {
		case size := <-sizes:
			told = true
			if size != (Size{Width: 99, Height: 33}) {
				t.Errorf("told was %v", size)
			}
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-ended
}

func TestAReadThatWaitsEndsWithTheContext(t *testing.T) {
	_, tty := terminal(t)
	read, write := pipe(t)
	for name, file := range map[string]*os.File{"terminal": tty, "pipe": read} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			input, closeInput, err := Files(file, write, write).Input(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer closeInput()
			read := make(chan error, 1)
			go func() {
				_, err := input.Read(make([]byte, 8))
				read <- err
			}()
			cancel()
			if err := <-read; !errors.Is(err, context.Canceled) {
				t.Errorf("the read ends with %v", err)
			}
		})
	}
}

func TestInputIsReadToItsEnd(t *testing.T) {
	read, write := pipe(t)
	if _, err := io.WriteString(write, "all of it"); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	input, closeInput, err := Files(read, read, read).Input(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeInput()
	if got, err := io.ReadAll(input); err != nil || string(got) != "all of it" {
		t.Errorf("read %q, %v", got, err)
	}
	person, tty := terminal(t)
	input, closeTerminal, err := Files(tty, tty, tty).Input(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeTerminal()
	if err := person.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := input.Read(make([]byte, 8)); !errors.Is(err, io.EOF) {
		t.Errorf("the read of a terminal that has gone ends with %v", err)
	}
}

func TestProgressIsForTerminalsAndForLongWaits(t *testing.T) {
	person, tty := terminal(t)
	now := time.Unix(0, 0)
	clock := func() time.Time { return now }

	var log bytes.Buffer
	silent := Buffers(nil, nil, &log).Progress(clock)
	streams := Files(tty, tty, tty)
	shown := streams.Progress(clock)
	shown.Show("too early")
	now = now.Add(2 * time.Second)
	silent.Show("waiting")
	silent.Done()
	if log.Len() > 0 {
		t.Errorf("on a pipe there is %q", log.String())
	}
	shown.Show("waiting")
	shown.Done()
	shown.Done()
	want := "\r\x1b[Kwaiting … 2s\r\x1b[K"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(person, got); err != nil || string(got) != want {
		t.Errorf("on the terminal is %q, %v; want %q", got, err, want)
	}
}

func TestTheFirstSignalEndsTheWorkAndTheSecondTheCleanup(t *testing.T) {
	for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			interrupts := CatchInterrupts(t.Context())
			defer interrupts.Stop()
			if err := unix.Kill(os.Getpid(), signal); err != nil {
				t.Fatal(err)
			}
			<-interrupts.Work.Done()
			if interrupts.Cleanup.Err() != nil {
				t.Fatal("the first signal ended the cleanup")
			}
			if err := unix.Kill(os.Getpid(), signal); err != nil {
				t.Fatal(err)
			}
			<-interrupts.Cleanup.Done()
		})
	}
}

func TestTheEndOfTheCallerEndsTheWorkAndLeavesTheCleanup(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	interrupts := CatchInterrupts(parent)
	cancel()
	<-interrupts.Work.Done()
	if interrupts.Cleanup.Err() != nil {
		t.Error("the cleanup ended with the caller")
	}
	interrupts.Stop()
	if interrupts.Cleanup.Err() == nil {
		t.Error("the cleanup outlives Stop")
	}
}
