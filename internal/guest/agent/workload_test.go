package agent

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// followed collects the main process's output to its end.
func (s *sandbox) followed(offset uint64) []*guestv1.Output {
	s.t.Helper()
	var outputs []*guestv1.Output
	err := s.client.FollowOutput(s.t.Context(), offset, func(output *guestv1.Output) error {
		outputs = append(outputs, output)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return outputs
}

func textOf(outputs []*guestv1.Output) string {
	var text strings.Builder
	for _, output := range outputs {
		text.Write(output.GetData())
	}
	return text.String()
}

func TestNothingRunsBeforeStart(t *testing.T) {
	s := newSandbox(t)
	if running := s.processes(); len(running) != 0 {
		t.Errorf("running: %q", running)
	}
	err := s.client.Watch(t.Context(), func(status *guestv1.Status) error {
		if status.GetStarted() {
			t.Error("said to have started")
		}
		return io.EOF
	})
	if err != io.EOF {
		t.Fatal(err)
	}
}

func TestStartWritesFilesBeforeTheProcessStarts(t *testing.T) {
	s := newSandbox(t)
	s.start(&guestv1.Start{
		Process: shell("cat /deep/in/file; stat -c %a /deep/in/file /deep/in/key"),
		Files: []*guestv1.File{
			{Path: "/deep/in/file", Content: []byte("content\n")},
			{Path: "/deep/in/key", Mode: 0o600},
		},
	})
	if got := textOf(s.followed(0)); got != "content\n644\n600\n" {
		t.Errorf("the process saw %q", got)
	}
}

func TestAMainProcessThatCannotStartIsAnError(t *testing.T) {
	s := newSandbox(t)
	for name, test := range map[string]struct {
		start *guestv1.Start
		code  guestv1.Error_Code
	}{
		"no process":                 {&guestv1.Start{}, guestv1.Error_INVALID},
		"no such program":            {&guestv1.Start{Process: command("nothing")}, guestv1.Error_CANNOT_EXECUTE},
		"not executable":             {&guestv1.Start{Process: command("/bin/notrunnable")}, guestv1.Error_CANNOT_EXECUTE},
		"no such user":               {&guestv1.Start{Process: shellAs("nobody", "true")}, guestv1.Error_CANNOT_EXECUTE},
		"no such directory":          {&guestv1.Start{Process: &guestv1.Process{Argv: []string{"true"}, Cwd: "/nowhere"}}, guestv1.Error_CANNOT_EXECUTE},
		"terminal":                   {&guestv1.Start{Process: &guestv1.Process{Argv: []string{"true"}, Tty: true}}, guestv1.Error_INVALID},
		"negative grace":             {&guestv1.Start{Process: command("true"), GraceMillis: -1}, guestv1.Error_INVALID},
		"impossible deadline":        {&guestv1.Start{Process: command("true"), Deadline: &timestamppb.Timestamp{Nanos: -1}}, guestv1.Error_INVALID},
		"file in a read-only place":  {&guestv1.Start{Process: command("true"), Files: []*guestv1.File{{Path: "/readonly/x"}}}, guestv1.Error_PERMISSION_DENIED},
		"file at a relative path":    {&guestv1.Start{Process: command("true"), Files: []*guestv1.File{{Path: "x"}}}, guestv1.Error_INVALID},
		"file in place of directory": {&guestv1.Start{Process: command("true"), Files: []*guestv1.File{{Path: "/etc"}}}, guestv1.Error_IS_DIRECTORY},
	} {
		t.Run(name, func(t *testing.T) {
			requireCode(t, s.client.Start(t.Context(), test.start), test.code)
		})
	}
	// None of these has used up the one start.
	s.startIdle()
	requireCode(t, s.client.Start(t.Context(), &guestv1.Start{Process: idle()}), guestv1.Error_INVALID)
}

func TestWatchTellsStartAndExit(t *testing.T) {
	s := newSandbox(t)
	var seen []*guestv1.Status
	watched := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		watched <- s.client.Watch(t.Context(), func(status *guestv1.Status) error {
			if seen = append(seen, status); len(seen) == 1 {
				close(first)
			}
			return nil
		})
	}()
	<-first
	s.start(&guestv1.Start{Process: shell("exit 7")})
	if exit := s.waitForExit().GetExit(); exit.GetCode() != 7 || exit.GetTime() == nil {
		t.Errorf("exit %v", exit)
	}
	if err := s.client.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-watched; err != nil {
		t.Errorf("Watch ended with %v", err)
	}
	last := seen[len(seen)-1]
	if seen[0].GetStarted() || !last.GetStarted() || last.GetStartTime() == nil || last.GetExit().GetCode() != 7 {
		t.Errorf("watched %v", seen)
	}
	if code := s.wait(); code != 7 {
		t.Errorf("the guest exits with %d, expected the main process's code", code)
	}
}

func TestTheEndOfTheMainProcessEndsEverything(t *testing.T) {
	s := newSandbox(t)
	s.start(&guestv1.Start{Process: shell("(setsid sleep 3001 &); sleep 3000")})
	session, err := s.client.Exec(t.Context(), &guestv1.Exec{Process: command("sleep", "3002")})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := s.client.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, session); r.exit.GetCode() != 137 {
		t.Errorf("the exec ended with %v", r.exit)
	}
	if left := s.processes(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if err := s.client.Ping(t.Context()); err != nil {
		t.Errorf("the guest does not answer any more: %v", err)
	}
}

func TestStopGivesTheMainProcessItsGrace(t *testing.T) {
	for name, test := range map[string]struct {
		process *guestv1.Process
		grace   time.Duration
		code    int32
	}{
		"ends itself":       {shell(`trap "exit 5" TERM; echo ready; while true; do sleep 0.01; done`), time.Hour, 5},
		"ignores it":        {shell(`trap "" TERM; echo ready; while true; do sleep 0.01; done`), 50 * time.Millisecond, 137},
		"has no grace":      {shell(`trap "exit 5" TERM; echo ready; while true; do sleep 0.01; done`), 0, 137},
		"has a daemon left": {shell(`(setsid sh -c 'trap "" TERM; sleep 3003' &); trap "exit 6" TERM; echo ready; while true; do sleep 0.01; done`), time.Hour, 6},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t)
			s.start(&guestv1.Start{Process: test.process})
			err := s.client.FollowOutput(t.Context(), 0, func(*guestv1.Output) error { return io.EOF })
			if err != io.EOF {
				t.Fatal(err)
			}
			if err := s.client.Stop(t.Context(), test.grace); err != nil {
				t.Fatal(err)
			}
			if left := s.processes(); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
			if exit := s.waitForExit().GetExit(); exit.GetCode() != test.code {
				t.Errorf("exit %v, expected %d", exit, test.code)
			}
			if err := s.client.Stop(t.Context(), 0); err != nil {
				t.Errorf("second stop: %v", err)
			}
		})
	}
}

func TestAStoppedSandboxNeverStarts(t *testing.T) {
	s := newSandbox(t)
	if err := s.client.Stop(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	requireCode(t, s.client.Start(t.Context(), &guestv1.Start{Process: idle()}), guestv1.Error_INVALID)
	requireCode(t, s.client.Stop(t.Context(), -time.Second), guestv1.Error_INVALID)
}

func TestTheDeadlineEndsEverything(t *testing.T) {
	for name, test := range map[string]struct {
		process *guestv1.Process
		in      time.Duration
		code    int32
	}{
		"by SIGTERM":       {command("sleep", "3004"), 50 * time.Millisecond, 143},
		"by SIGKILL":       {shell(`trap "" TERM; while true; do sleep 0.01; done`), 2 * time.Second, 137},
		"that has gone by": {command("sleep", "3004"), -time.Hour, 143},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t)
			s.start(&guestv1.Start{
				Process:     test.process,
				Deadline:    timestamppb.New(time.Now().Add(test.in)),
				GraceMillis: 100,
			})
			status := s.waitForExit()
			if !status.GetDeadlineExceeded() || status.GetExit().GetCode() != test.code {
				t.Errorf("got %v, expected exit %d by the deadline", status, test.code)
			}
			s.eventually("nothing is left", func() bool { return len(s.processes()) == 0 })
		})
	}
}

func TestADeadlineThatIsNotReachedChangesNothing(t *testing.T) {
	s := newSandbox(t)
	s.start(&guestv1.Start{Process: shell("exit 0"), Deadline: timestamppb.New(time.Now().Add(time.Hour))})
	if status := s.waitForExit(); status.GetDeadlineExceeded() || status.GetExit().GetCode() != 0 {
		t.Errorf("got %v", status)
	}
}

func TestOrphansAreCollected(t *testing.T) {
	s := newSandbox(t).startIdle()
	s.sh("i=0; while [ $i -lt 100 ]; do (true &) ; i=$((i+1)); done")
	s.eventually("no zombie is left", func() bool { return len(s.processes()) == idleProcesses })
}

func TestSignalsGoToTheMainProcess(t *testing.T) {
	for name, signal := range map[string]unix.Signal{"HUP": unix.SIGHUP, "INT": unix.SIGINT, "TERM": unix.SIGTERM, "USR1": unix.SIGUSR1} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t)
			s.start(&guestv1.Start{Process: shell(`trap "echo got ` + name + `; exit 0" ` + name + `; echo ready; while true; do sleep 0.01; done`)})
			s.awaitOutput()
			if err := s.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if got := textOf(s.followed(6)); got != "got "+name+"\n" {
				t.Errorf("the process said %q", got)
			}
		})
	}
}

func TestNoSignalOfTheWorkloadEndsTheGuest(t *testing.T) {
	s := newSandbox(t)
	s.start(&guestv1.Start{Process: shell(`trap "" TERM INT HUP QUIT USR1 USR2 ALRM CONT WINCH; echo ready; while true; do sleep 0.1; done`)})
	s.awaitOutput()
	for signal := 1; signal <= 64; signal++ {
		if signal == 32 || signal == 33 || signal >= 34 {
			// Forwarded, or the C library's own.
			continue
		}
		s.sh("kill -" + strconv.Itoa(signal) + " 1; true")
	}
	if err := s.client.Ping(t.Context()); err != nil {
		t.Errorf("the guest has gone: %v", err)
	}
}

func TestTheGuestEndsWithoutAWorkloadWhenItIsTold(t *testing.T) {
	s := newSandbox(t)
	if err := s.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTheGuestEndsByItselfWhenNobodyComes(t *testing.T) {
	s := newSandbox(t, lingerVariable+"=50ms")
	s.start(&guestv1.Start{Process: shell("exit 9")})
	if code := s.wait(); code != 9 {
		t.Errorf("exit code %d, expected the main process's", code)
	}
}

func TestShutdownTakesEverythingWithIt(t *testing.T) {
	s := newSandbox(t).startIdle()
	if err := s.client.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(); code != 0 && code != 137 {
		t.Errorf("exit code %d", code)
	}
}

func TestTheKernelPrefersTheWorkloadToTheGuest(t *testing.T) {
	s := newSandbox(t).startIdle()
	guestScore := readScore(t, filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid)))
	workloadScore, err := strconv.Atoi(s.sh("cat /proc/self/oom_score_adj"))
	if err != nil {
		t.Fatal(err)
	}
	if workloadScore <= guestScore {
		t.Errorf("oom_score_adj: workload %d, guest %d", workloadScore, guestScore)
	}
}

func readScore(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(dir + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return score
}

func TestOutputIsFollowedInOrderWithStreamTimeAndOffset(t *testing.T) {
	s := newSandbox(t)
	s.start(&guestv1.Start{Process: shell("echo one; sleep 0.05; echo two >&2; sleep 0.05; echo three")})
	outputs := s.followed(0)
	if len(outputs) != 3 {
		t.Fatalf("%d chunks: %v", len(outputs), outputs)
	}
	var offset uint64
	for i, want := range []struct {
		stream uint32
		text   string
	}{{1, "one\n"}, {2, "two\n"}, {1, "three\n"}} {
		got := outputs[i]
		if got.GetStream() != want.stream || string(got.GetData()) != want.text || got.GetOffset() != offset || got.GetDropped() != 0 {
			t.Errorf("chunk %d: %v", i, got)
		}
		if i > 0 && !got.GetTime().AsTime().After(outputs[i-1].GetTime().AsTime()) {
			t.Errorf("chunk %d is not later than the one before", i)
		}
		offset += uint64(len(got.GetData()))
	}
	if got := textOf(s.followed(6)); got != "o\nthree\n" {
		t.Errorf("from byte 6: %q", got)
	}
	if got := s.followed(offset); len(got) != 0 {
		t.Errorf("from the end: %v", got)
	}
	requireCode(t, s.client.FollowOutput(t.Context(), offset+1, nil), guestv1.Error_INVALID)
}

func TestOutputThatNobodyReadsNeverStopsTheWorkload(t *testing.T) {
	s := newSandbox(t)
	s.start(&guestv1.Start{Process: shell("seq 1 200000; echo end")})
	s.waitForExit()
	outputs := s.followed(0)
	text := textOf(outputs)
	if !strings.HasSuffix(text, "\n200000\nend\n") {
		t.Errorf("the end is missing: %q", text[max(0, len(text)-30):])
	}
	if len(text) > outputKeptBytes || outputs[0].GetDropped() == 0 || outputs[0].GetDropped() != outputs[0].GetOffset() {
		t.Errorf("kept %d bytes, dropped %d, first at %d", len(text), outputs[0].GetDropped(), outputs[0].GetOffset())
	}
}
