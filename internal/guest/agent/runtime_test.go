package agent

import (
	"context"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// runtimes are those that the guest must work in.
func runtimes() map[string]containerRuntime {
	return map[string]containerRuntime{
		"runc":  {keepsInit: true},
		"runsc": {options: []string{"--host-uds=all", "--network=none", "--ignore-cgroups", "--platform=systrap"}},
	}
}

// TestTheCommandWorksInEveryRuntime runs the real command, as a sandbox does,
// in the container runtimes that this machine has.
func TestTheCommandWorksInEveryRuntime(t *testing.T) {
	checks := map[string]func(*testing.T, *sandbox, containerRuntime){
		"a whole life":                 checkLife,
		"the deadline":                 checkDeadline,
		"the end of a terminal":        checkEndOfTerminal,
		"the workload keeps its hands": checkIntruder,
	}
	for name, runtime := range runtimes() {
		t.Run(name, func(t *testing.T) {
			var err error
			if runtime.path, err = exec.LookPath(name); err != nil {
				t.Skipf("%s is not installed", name)
			}
			for _, name := range slices.Sorted(maps.Keys(checks)) {
				t.Run(name, func(t *testing.T) { checks[name](t, runContainer(t, runtime), runtime) })
			}
		})
	}
}

func checkLife(t *testing.T, s *sandbox, _ containerRuntime) {
	t.Helper()
	s.start(&guestv1.Start{
		Process: shell(`cat /work/file; echo err >&2; trap "exit 4" TERM; while true; do sleep 0.05; done`),
		Files:   []*guestv1.File{{Path: "/work/file", Content: []byte("from a file\n")}},
	})
	if r := s.exec(command("echo", "hello")); r.stdout != "hello\n" || len(r.frames) != 1 || r.exit.GetCode() != 0 {
		t.Errorf("echo: %+v", r)
	}
	if r := s.exec(command("nothing")); r.exit.GetCode() != 127 || r.stderr == "" {
		t.Errorf("no such program: %+v", r)
	}
	if r := s.exec(shellAs("app", "id -u; id -g; id -G; echo again > /dev/stdout")); r.stdout != "1000\n1001\n1001 2000\nagain\n" {
		t.Errorf("user: %+v", r)
	}
	if r := s.execWithStdin(command("cat"), strings.NewReader("to stdin")); r.stdout != "to stdin" {
		t.Errorf("stdin: %+v", r)
	}
	if r := s.exec(terminal("sh", "-c", "stty size; test -t 0 && echo terminal")); r.stdout != "30 100\r\nterminal\r\n" {
		t.Errorf("terminal: %+v", r)
	}
	if err := s.write("/tmp/new/file", 0o600, "written"); err != nil {
		t.Errorf("write: %v", err)
	}
	if got, err := s.read("/tmp/new/file", 0); err != nil || got != "written" {
		t.Errorf("read: %q, %v", got, err)
	}
	if got := s.sh("stat -c '%a %u' /tmp/new/file"); got != "600 0" {
		t.Errorf("the file is %q", got)
	}
	checkKill(t, s)
	if err := s.client.Stop(t.Context(), lingerTime*10); err != nil {
		t.Fatal(err)
	}
	if exit := s.waitForExit().GetExit(); exit.GetCode() != 4 {
		t.Errorf("exit %v", exit)
	}
	// Two pipes have no order between them.
	texts := map[uint32]string{}
	for _, output := range s.followed(0) {
		texts[output.GetStream()] += string(output.GetData())
	}
	if texts[stdoutStream] != "from a file\n" || texts[stderrStream] != "err\n" {
		t.Errorf("output %v", texts)
	}
	if err := s.client.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if code := s.wait(); code != 4 {
		t.Errorf("the runtime reports exit code %d", code)
	}
}

func checkDeadline(t *testing.T, s *sandbox, _ containerRuntime) {
	t.Helper()
	s.start(&guestv1.Start{Process: command("sleep", "5002"), GraceMillis: 60_000, Deadline: timestamppb.New(time.Now().Add(time.Second))})
	if status := s.waitForExit(); !status.GetDeadlineExceeded() || status.GetExit().GetCode() != 143 {
		t.Errorf("at the deadline: %v", status)
	}
	s.finish()
}

// checkKill cancels an exec that left a daemon and does not read its stdin.
func checkKill(t *testing.T, s *sandbox) {
	t.Helper()
	const count = `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $f; echo; done 2>/dev/null | busybox grep -c '^sleep 5001'; true`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	session, err := s.client.Exec(ctx, &guestv1.Exec{Process: shell("(setsid sleep 5001 &); sleep 5001"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	s.eventually("both run", func() bool { return s.sh(count) == "2" })
	cancel()
	s.eventually("both are gone", func() bool { return s.sh(count) == "0" })
}

// checkEndOfTerminal ends the input of programs that read it sooner or later.
func checkEndOfTerminal(t *testing.T, s *sandbox, _ containerRuntime) {
	t.Helper()
	s.start(&guestv1.Start{Process: idle()})
	for name, test := range map[string]struct {
		script string
		input  string
		want   string
	}{
		"at once":                    {"exec cat", "line\n", "line\r\n"},
		"without input":              {"exec cat", "", ""},
		"within a line":              {"exec cat", "half", "half"},
		"read late":                  {"sleep 0.5; exec cat", "line\n", "line\r\n"},
		"read late, without input":   {"sleep 0.5; exec cat", "", ""},
		"read twice":                 {"cat; sleep 0.2; cat; echo both", "line\n", "both\r\n"},
		"read by a shell":            {"sh; sh", "echo $((40+2))\n", "42\r\n"},
		"read after a mode's change": {"stty -icanon; sleep 0.2; stty icanon; exec cat", "text\n", "text\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			session, err := s.client.Exec(ctx, &guestv1.Exec{Process: terminal("sh", "-c", test.script), Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			if _, err := session.Write([]byte(test.input)); err != nil {
				t.Fatal(err)
			}
			if err := session.CloseStdin(); err != nil {
				t.Fatal(err)
			}
			if r := collect(t, session); !strings.Contains(r.stdout, test.want) || r.exit.GetCode() != 0 {
				t.Errorf("%q, exit %v", r.stdout, r.exit)
			}
		})
	}
	s.finish()
}

// checkIntruder lets the workload, as the guest's own user and as another,
// try to get at the guest.
func checkIntruder(t *testing.T, s *sandbox, runtime containerRuntime) {
	t.Helper()
	// What the guest forwards does not end it.
	s.start(&guestv1.Start{Process: shell(`trap "" HUP INT QUIT USR1 USR2 ALRM TERM; echo ready; while true; do sleep 1; done`)})
	s.awaitOutput()
	for _, user := range []string{"root", "app"} {
		process := command(intruderPath, "1")
		process.User = user
		if r := s.exec(process); r.stdout != "" || r.stderr != "" || r.exit.GetCode() != 0 {
			t.Errorf("as %s, against the guest: %s%s", user, r.stdout, r.stderr)
		}
	}
	// The same attempts work where they may.
	r := s.exec(shell(`sleep 1000 & ` + intruderPath + ` $!; kill $!`))
	for _, success := range []string{"/environ", "/fd/1"} {
		if !strings.Contains(r.stdout, success) {
			t.Errorf("against a process of its own, %s is not among: %s", success, r.stdout)
		}
	}
	signals := "HUP INT QUIT ILL ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM CHLD CONT TSTP TTIN TTOU PROF SYS"
	if runtime.keepsInit {
		signals += " KILL STOP"
	}
	if r := s.exec(shell("for s in " + signals + "; do kill -$s 1 || exit 1; done")); r.exit.GetCode() != 0 {
		t.Errorf("signals: %+v", r)
	}
	if err := s.client.Ping(t.Context()); err != nil {
		t.Errorf("after the signals: %v", err)
	}
	s.finish()
}

// finish shuts the guest down, whatever it runs.
func (s *sandbox) finish() {
	s.t.Helper()
	if err := s.client.Shutdown(s.t.Context()); err != nil {
		s.t.Error(err)
	}
	s.wait()
}
