package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

func requireCode(t *testing.T, err error, code guestv1.Error_Code) {
	t.Helper()
	var refused *guest.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("got %v, expected %v", err, code)
	}
}

func TestExecDeliversOutputThenExit(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(shell("echo out; echo err >&2; exit 3"))
	if r.stdout != "out\n" || r.stderr != "err\n" || r.exit.GetCode() != 3 || r.started.GetPid() == 0 {
		t.Errorf("got %+v", r)
	}
}

func TestOneSmallWriteIsOneFrame(t *testing.T) {
	s := newSandbox(t).startIdle()
	if r := s.exec(command("echo", "hello")); !cmp.Equal(r.frames, []string{"hello\n"}) {
		t.Errorf("frames: %q", r.frames)
	}
}

func TestWritesApartInTimeAreApart(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(shell("for i in 1 2 3; do echo $i; sleep 0.1; done"))
	if !cmp.Equal(r.frames, []string{"1\n", "2\n", "3\n"}) {
		t.Errorf("frames: %q", r.frames)
	}
}

func TestProgramsThatCannotRunEndLikeInAShell(t *testing.T) {
	s := newSandbox(t).startIdle()
	for name, test := range map[string]struct {
		process *guestv1.Process
		code    int32
		message string
	}{
		"not in PATH":            {command("nothing"), 127, "nothing: not found in PATH (" + defaultPath + ")\n"},
		"no such path":           {command("/bin/nothing"), 127, "/bin/nothing: no such file or directory\n"},
		"empty PATH":             {&guestv1.Process{Argv: []string{"sh"}, Env: []string{"PATH="}}, 127, "sh: not found in PATH ()\n"},
		"not executable":         {command("/bin/notrunnable"), 126, "/bin/notrunnable: cannot execute: permission denied\n"},
		"directory":              {command("/bin"), 126, "/bin: cannot execute: is a directory\n"},
		"not a program":          {command("badformat"), 126, "badformat: cannot execute: exec format error\n"},
		"no interpreter":         {command("badscript"), 127, "badscript: its interpreter does not exist\n"},
		"no working directory":   {&guestv1.Process{Argv: []string{"true"}, Cwd: "/nowhere"}, 126, "working directory \"/nowhere\": no such file or directory\n"},
		"working in a file":      {&guestv1.Process{Argv: []string{"true"}, Cwd: "/etc/passwd"}, 126, "working directory \"/etc/passwd\": not a directory\n"},
		"unknown user":           {&guestv1.Process{Argv: []string{"true"}, User: "nobody"}, 126, "user \"nobody\": unable to find user nobody: no matching entries in passwd file\n"},
		"unknown group":          {&guestv1.Process{Argv: []string{"true"}, User: "app:none"}, 126, "user \"app:none\": unable to find group none: no matching entries in group file\n"},
		"user number impossible": {&guestv1.Process{Argv: []string{"true"}, User: "4294967296"}, 126, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.exec(test.process)
			if r.exit.GetCode() != test.code || r.started != nil || r.stdout != "" {
				t.Errorf("got %+v, expected exit %d", r, test.code)
			}
			if test.message != "" && r.stderr != test.message {
				t.Errorf("stderr %q, expected %q", r.stderr, test.message)
			}
		})
	}
}

func TestMalformedProcessesAreRefused(t *testing.T) {
	s := newSandbox(t).startIdle()
	for name, process := range map[string]*guestv1.Process{
		"none":             nil,
		"no argv":          {},
		"empty program":    {Argv: []string{""}},
		"NUL in argv":      {Argv: []string{"a\x00b"}},
		"NUL in env":       {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		"env without name": {Argv: []string{"true"}, Env: []string{"=x"}},
		"env without =":    {Argv: []string{"true"}, Env: []string{"x"}},
		"relative cwd":     {Argv: []string{"true"}, Cwd: "work"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.client.Exec(t.Context(), &guestv1.Exec{Process: process})
			requireCode(t, err, guestv1.Error_INVALID)
		})
	}
}

func TestProcessesRunAsTheyAreDescribed(t *testing.T) {
	s := newSandbox(t).startIdle()
	for name, test := range map[string]struct {
		process *guestv1.Process
		want    string
	}{
		"environment is exactly what was given": {
			&guestv1.Process{Argv: []string{"env"}, Env: []string{"A=1", "PATH=/bin", "HOME=/h"}},
			"A=1\nPATH=/bin\nHOME=/h\n",
		},
		"the last value of a name counts": {
			&guestv1.Process{Argv: []string{"env"}, Env: []string{"A=1", "PATH=/bin", "HOME=/h", "A=2"}},
			"A=2\nPATH=/bin\nHOME=/h\n",
		},
		"PATH and HOME are added": {
			&guestv1.Process{Argv: []string{"env"}, User: "app"},
			"PATH=" + defaultPath + "\nHOME=/home/app\n",
		},
		"working directory":       {&guestv1.Process{Argv: []string{"pwd"}, Cwd: "/work"}, "/work\n"},
		"relative program":        {&guestv1.Process{Argv: []string{"./busybox", "pwd"}, Cwd: "/bin"}, "/bin\n"},
		"root without user":       {shellAs("", "id -u; id -g"), "0\n0\n"},
		"user by name":            {shellAs("app", "id -u; id -g; id -G"), "1000\n1001\n1001 2000\n"},
		"user and group by name":  {shellAs("app:extra", "id -u; id -g; id -G"), "1000\n2000\n2000\n"},
		"user by known number":    {shellAs("1000", "id -u; id -g; id -G"), "1000\n1001\n1001 2000\n"},
		"user by unknown number":  {shellAs("4242", "id -u; id -g; id -G"), "4242\n0\n0\n"},
		"user and group numbers":  {shellAs("4242:4343", "id -u; id -g; id -G"), "4242\n4343\n4343\n"},
		"a user may open stdout":  {shellAs("app", "echo again > /dev/stdout"), "again\n"},
		"session of its own":      {shell(`read -r pid name state parent group session rest < /proc/self/stat; test $$ = $session && echo own`), "own\n"},
		"no descriptor is passed": {shell("for n in 3 4 5 6 7 8 9 10 11 12; do test -e /proc/$$/fd/$n && echo $n; done; true"), ""},
		"stdin is empty":          {shell("cat; readlink /proc/$$/fd/0"), "/dev/null\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := s.exec(test.process); r.stdout != test.want || r.stderr != "" {
				t.Errorf("stdout %q, stderr %q, expected %q", r.stdout, r.stderr, test.want)
			}
		})
	}
}

func shellAs(user, script string) *guestv1.Process {
	p := shell(script)
	p.User = user
	return p
}

func TestTheWorkloadCannotReachTheGuest(t *testing.T) {
	s := newSandbox(t).startIdle()
	if listed := s.sh("ls /.sandbar"); listed != "moved" {
		t.Fatalf("the socket's directory holds %q", listed)
	}
	for name, script := range map[string]string{
		"environment": "cat /proc/1/environ",
		"descriptors": "ls -l /proc/1/fd/",
		"memory":      "head -c 1 /proc/1/mem",
		"root":        "ls /proc/1/root/",
		"maps":        "cat /proc/1/maps",
	} {
		t.Run(name, func(t *testing.T) {
			process := shellAs("app", script)
			if r := s.exec(process); r.exit.GetCode() == 0 && r.stdout != "" {
				t.Errorf("%s shows %q", script, r.stdout)
			}
		})
	}
}

func TestStdinReachesTheProcessToItsEnd(t *testing.T) {
	s := newSandbox(t).startIdle()
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	for name, stdin := range map[string][]byte{"empty": {}, "short": []byte("abc"), "long and binary": data} {
		t.Run(name, func(t *testing.T) {
			r := s.execWithStdin(command("cat"), bytes.NewReader(stdin))
			if r.stdout != string(stdin) || r.exit.GetCode() != 0 {
				t.Errorf("%d of %d bytes came back, exit %v", len(r.stdout), len(stdin), r.exit)
			}
		})
	}
}

func TestStdinThatNobodyReadsIsDropped(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.execWithStdin(shell("exec <&-; echo done"), bytes.NewReader(make([]byte, 4<<20)))
	if r.stdout != "done\n" || r.exit.GetCode() != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestSignalsThatEndAProcessAreItsExit(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(shell("kill -9 $$"))
	if r.exit.GetCode() != 137 || r.exit.GetSignal() != 9 {
		t.Errorf("got %v", r.exit)
	}
}

func TestExitNeverOvertakesOutput(t *testing.T) {
	s := newSandbox(t).startIdle()
	for range 50 {
		if r := s.exec(shell("seq 1 2000")); !strings.HasSuffix(r.stdout, "\n2000\n") {
			t.Fatalf("the end is missing: %q", r.stdout[max(0, len(r.stdout)-20):])
		}
	}
}

func TestADescendantWithThePipeOpenDoesNotDelayTheExit(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(shell("sleep 1000 & echo started"))
	if r.stdout != "started\n" || r.exit.GetCode() != 0 {
		t.Errorf("got %+v", r)
	}
	if !s.isRunning("sleep 1000") {
		t.Error("what was left in the background on purpose is gone")
	}
}

func TestASlowReaderLosesNothingOfAFinishedProcess(t *testing.T) {
	s := newSandbox(t).startIdle()
	session, err := s.client.Exec(t.Context(), &guestv1.Exec{Process: shell("sleep 1001 & head -c 400000 /bin/busybox; : > /tmp/written")})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	// The process goes no further than pipe and socket hold until somebody
	// reads; the descendant keeps the pipe open after its end.
	if s.exec(shell("test -e /tmp/written")).exit.GetCode() == 0 {
		t.Error("the output was buffered without anyone reading")
	}
	if r := collect(t, session); len(r.stdout) != 400000 {
		t.Errorf("%d bytes, expected 400000", len(r.stdout))
	}
}

func TestClosingTheSessionKillsAllThatItStarted(t *testing.T) {
	for name, script := range map[string]string{
		"the process":                  "exec sleep 2001",
		"a child":                      "sleep 2001; true",
		"a background child":           "sleep 2001 & wait",
		"a child in another session":   "setsid sleep 2001 & wait",
		"a daemon without a parent":    "(setsid sleep 2001 &) ; exec sleep 2002",
		"a process that ignores TERM":  `trap "" TERM INT HUP; sleep 2001; true`,
		"a busy loop":                  "sleep 2001 & while true; do :; done",
		"a daemon of a daemon, orphan": "(setsid sh -c '(setsid sleep 2001 &)' &) ; exec sleep 2002",
		"a process with unread output": "sleep 2001 & exec yes",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t).startIdle()
			session, err := s.client.Exec(t.Context(), &guestv1.Exec{Process: shell(script)})
			if err != nil {
				t.Fatal(err)
			}
			s.eventually("sleep 2001 runs", func() bool { return s.isRunning("sleep 2001") })
			if err := session.Close(); err != nil {
				t.Fatal(err)
			}
			s.eventually("only the main process is left", func() bool { return len(s.processes()) == idleProcesses })
			if got := s.sh("echo usable"); got != "usable" {
				t.Errorf("the sandbox answers %q", got)
			}
		})
	}
}

func TestCancellingFindsAProcessThatDoesNotReadItsStdin(t *testing.T) {
	s := newSandbox(t).startIdle()
	ctx, cancel := context.WithCancel(t.Context())
	session, err := s.client.Exec(ctx, &guestv1.Exec{Process: command("sleep", "2003"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	blocked := make(chan error, 1)
	go func() {
		_, err := io.Copy(session, neverEnding{})
		blocked <- err
	}()
	s.eventually("sleep 2003 runs", func() bool { return s.isRunning("sleep 2003") })
	cancel()
	if err := <-blocked; !errors.Is(err, context.Canceled) {
		t.Errorf("Write: %v, expected context.Canceled", err)
	}
	s.eventually("it is killed", func() bool { return !s.isRunning("sleep 2003") })
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

func TestExecsRunSideBySide(t *testing.T) {
	s := newSandbox(t).startIdle()
	var tasks sync.WaitGroup
	for i := range 50 {
		tasks.Go(func() {
			want := fmt.Sprintf("%d\n", i)
			if r := s.execWithStdin(command("cat"), strings.NewReader(want)); r.stdout != want {
				t.Errorf("exec %d got %q", i, r.stdout)
			}
		})
	}
	tasks.Wait()
}

func TestExecNeedsARunningMainProcess(t *testing.T) {
	s := newSandbox(t)
	_, err := s.client.Exec(t.Context(), &guestv1.Exec{Process: command("true")})
	requireCode(t, err, guestv1.Error_INVALID)
	s.start(&guestv1.Start{Process: command("true")})
	s.waitForExit()
	_, err = s.client.Exec(t.Context(), &guestv1.Exec{Process: command("true")})
	requireCode(t, err, guestv1.Error_INVALID)
}

func TestFramesEndBetweenCharacters(t *testing.T) {
	s := newSandbox(t).startIdle()
	r := s.exec(shell("i=0; while [ $i -lt 3000 ]; do printf 'a€€€€€€€€€€€€€€€€'; i=$((i+1)); done | cat"))
	if want := strings.Repeat("a"+strings.Repeat("€", 16), 3000); r.stdout != want {
		t.Fatalf("%d bytes, expected %d", len(r.stdout), len(want))
	}
	for i, frame := range r.frames {
		if len(frame) > outputFrameBytes {
			t.Errorf("frame %d has %d bytes", i, len(frame))
		}
		if strings.ToValidUTF8(frame, "") != frame {
			t.Errorf("frame %d of %d bytes cuts a character", i, len(frame))
		}
	}
}
