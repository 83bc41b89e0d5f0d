package agent

import (
	"io"
	"strings"
	"testing"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

func terminal(argv ...string) *guestv1.Process {
	return &guestv1.Process{Argv: argv, Tty: true, Size: &guestv1.Resize{Columns: 100, Rows: 30}}
}

// execOnTerminal opens a session on a terminal, with stdin.
func (s *sandbox) execOnTerminal(process *guestv1.Process) *guest.ExecSession {
	s.t.Helper()
	session, err := s.client.Exec(s.t.Context(), &guestv1.Exec{Process: process, Stdin: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = session.Close() })
	return session
}

// receiveUntil receives output until it holds what is awaited.
func receiveUntil(t *testing.T, session *guest.ExecSession, awaited string) string {
	t.Helper()
	var text strings.Builder
	for !strings.Contains(text.String(), awaited) {
		response, err := session.Recv()
		if err != nil || response.GetOutput() == nil {
			t.Fatalf("%q never came, but %q, %v, %v", awaited, text.String(), response, err)
		}
		text.Write(response.GetOutput().GetData())
	}
	return text.String()
}

func TestATerminalIsTheProcessesOwn(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(terminal("sh", "-c", "tty; stty size; echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo all; echo err >&2; : < /dev/tty && echo controlling"))
	if want := "/dev/pts/0\r\n30 100\r\nxterm\r\nall\r\nerr\r\ncontrolling\r\n"; r.stdout != want || r.stderr != "" {
		t.Errorf("stdout %q, stderr %q, expected %q", r.stdout, r.stderr, want)
	}
}

func TestATerminalBelongsToTheUser(t *testing.T) {
	s := newSandbox(t).startIdle()
	process := terminal("sh", "-c", "stat -c %u $(tty); echo again > $(tty)")
	process.User = "app"
	if r := s.exec(process); r.stdout != "1000\r\nagain\r\n" {
		t.Errorf("got %q", r.stdout)
	}
}

func TestResizeReachesTheProcess(t *testing.T) {
	s := newSandbox(t).startIdle()
	session := s.execOnTerminal(terminal("sh", "-c", `trap 'stty size; exit 0' WINCH; echo ready; while true; do sleep 0.01; done`))
	receiveUntil(t, session, "ready\r\n")
	if err := session.Resize(132, 43); err != nil {
		t.Fatal(err)
	}
	receiveUntil(t, session, "43 132\r\n")
	if r := collect(t, session); r.exit.GetCode() != 0 {
		t.Errorf("exit %v", r.exit)
	}
}

func TestControlCInterruptsTheForeground(t *testing.T) {
	s := newSandbox(t).startIdle()
	session := s.execOnTerminal(terminal("sh", "-c", "echo ready; exec sleep 4001"))
	receiveUntil(t, session, "ready\r\n")
	s.eventually("sleep runs", func() bool { return s.isRunning("sleep 4001") })
	if _, err := session.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, session); r.exit.GetCode() != 130 || r.exit.GetSignal() != 2 {
		t.Errorf("exit %v, expected SIGINT", r.exit)
	}
}

func TestTheEndOfStdinIsTheEndOfATerminalsInput(t *testing.T) {
	for name, test := range map[string]struct {
		process *guestv1.Process
		input   string
		want    string
	}{
		"without input":              {terminal("cat"), "", ""},
		"after lines":                {terminal("cat"), "one\ntwo\n", "one\r\ntwo\r\n"},
		"within a line":              {terminal("cat"), "half", "half"},
		"for a shell":                {terminal("sh"), "echo $((40+2))\n", "42\r\n"},
		"for a shell within a shell": {terminal("sh", "-c", "sh; sh"), "echo $((40+2))\n", "42\r\n"},
		"after a change of mode":     {terminal("sh", "-c", "stty -icanon; sleep 0.2; stty icanon; cat"), "text\n", "text\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t).startIdle()
			session := s.execOnTerminal(test.process)
			if _, err := session.Write([]byte(test.input)); err != nil {
				t.Fatal(err)
			}
			if err := session.CloseStdin(); err != nil {
				t.Fatal(err)
			}
			r := collect(t, session)
			if !strings.Contains(r.stdout, test.want) || r.exit.GetCode() != 0 {
				t.Errorf("got %q, exit %v, expected %q in it", r.stdout, r.exit, test.want)
			}
		})
	}
}

func TestClosingATerminalSessionKillsAllOfIt(t *testing.T) {
	s := newSandbox(t).startIdle()
	session := s.execOnTerminal(terminal("sh", "-c", `trap "" HUP TERM; (setsid sleep 4002 &); echo ready; sleep 4003; true`))
	receiveUntil(t, session, "ready\r\n")
	s.eventually("both run", func() bool { return s.isRunning("sleep 4002") && s.isRunning("sleep 4003") })
	_ = session.Close()
	s.eventually("both are gone", func() bool { return len(s.processes()) == idleProcesses })
}

func TestAnUnknownProgramOnATerminalSaysSoOnIt(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(terminal("nothing"))
	if !strings.HasSuffix(r.stdout, "\r\n") || r.stderr != "" || r.exit.GetCode() != 127 {
		t.Errorf("got %+v", r)
	}
}

func TestAllOutputOfATerminalComesBeforeTheExit(t *testing.T) {
	s := newSandbox(t).startIdle()
	for range 20 {
		if r := s.exec(terminal("seq", "1", "2000")); !strings.HasSuffix(r.stdout, "\r\n2000\r\n") {
			t.Fatalf("the end is missing: %q", r.stdout[max(0, len(r.stdout)-20):])
		}
	}
}

func TestMuchInputReachesATerminal(t *testing.T) {
	s := newSandbox(t).startIdle()
	session := s.execOnTerminal(terminal("sh", "-c", "stty raw -echo; echo ready; exec head -c 1000000"))
	receiveUntil(t, session, "ready")
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(session, io.LimitReader(neverEnding{}, 1000000))
		sent <- err
	}()
	r := collect(t, session)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	// A line break of "ready" may have come with it.
	if n := strings.Count(r.stdout, "\x00"); n != 1000000 || r.exit.GetCode() != 0 {
		t.Errorf("%d bytes came back, exit %v", n, r.exit)
	}
}
