package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/install"
)

const (
	// healthyAfter is how long a process must live to count as one that works.
	healthyAfter = 30 * time.Second
	firstPause   = time.Second
	maxPause     = time.Minute
	// loopAfter and failedAfter are how many quick deaths in a row make a
	// crash loop, and one that is given up as failed (it is still tried).
	loopAfter   = 2
	failedAfter = 5
	// endGrace is between SIGTERM and SIGKILL of a runner; it drains calls.
	endGrace = 15 * time.Second
	// maxLogBytes is how large a log grows before it is set aside, once.
	maxLogBytes = 16 << 20
	tailBytes   = 2 << 10
)

// supervisor keeps the process of one revision running.
type supervisor struct {
	installer *Installer
	files     revisionFiles
	env       []string
	limits    cgroup

	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	current *process
	// deaths are quick ones in a row.
	deaths int
	failed error
}

func (i *Installer) supervise(files revisionFiles, env []string, limits cgroup) *supervisor {
	ctx, cancel := context.WithCancel(context.Background())
	s := &supervisor{installer: i, files: files, env: env, limits: limits, cancel: cancel, ended: make(chan struct{})}
	i.running.Go(func() {
		defer close(s.ended)
		s.run(ctx)
	})
	return s
}

// stop ends the supervision and leaves the process.
func (s *supervisor) stop() {
	s.cancel()
	<-s.ended
}

func (s *supervisor) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		began := s.installer.options.Clock.Now()
		err := s.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.installer.options.Clock.Since(began) >= healthyAfter {
			pause = firstPause
			s.record(0, nil)
		}
		s.record(s.quickDeaths()+1, err)
		s.installer.options.Logger.Warn("a runner's process has ended; starting it again", "config", s.files.config(), "error", err, "retry_in", pause)
		timer := s.installer.options.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// runOnce finds or starts the process and waits for its end.
func (s *supervisor) runOnce(ctx context.Context) error {
	p, err := s.files.find()
	if errors.Is(err, errProcessGone) {
		if err := s.files.setLogAside(); err != nil {
			return err
		}
		p, err = s.files.start(s.installer.options.Executable, s.env, s.limits, s.installer.running.Go)
		if p != nil && err == nil {
			s.installer.options.Logger.Info("runner started", "pid", p.Pid, "config", s.files.config())
		}
	}
	if p == nil {
		if errors.Is(err, errProcessGone) {
			return nil
		}
		return err
	}
	defer p.release()
	if err != nil {
		s.installer.options.Logger.Warn("a runner runs, but not wholly as it should", "config", s.files.config(), "error", err)
	}
	s.mu.Lock()
	s.current = p
	s.mu.Unlock()
	err = p.wait(ctx)
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	return err
}

func (s *supervisor) record(deaths int, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths, s.failed = deaths, failed
}

func (s *supervisor) quickDeaths() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deaths
}

func (s *supervisor) observe() install.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	observed := install.Observation{Phase: install.PhaseStarting}
	if s.current != nil {
		observed.Phase = install.PhaseRunning
	}
	if s.deaths >= loopAfter {
		detail := s.files.logTail()
		if s.failed != nil {
			detail = s.failed.Error() + "\n" + detail
		}
		observed.Error = s.installer.installError(&failure{
			reason:  sandboxv1.InstallError_CRASH_LOOP,
			message: fmt.Sprintf("the runner's process has ended %d times shortly after its start", s.deaths),
			detail:  detail,
			hints:   []string{"The detail shows the end of its log, which is in " + s.files.log() + "."},
		})
	}
	if s.deaths >= failedAfter && s.current == nil {
		observed.Phase = install.PhaseFailed
	}
	return observed
}

// setLogAside renames a log that has grown large; the one before it goes.
func (f revisionFiles) setLogAside() error {
	info, err := os.Stat(f.log())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("measure the runner's log: %w", err)
	}
	if info.Size() < maxLogBytes {
		return nil
	}
	if err := os.Rename(f.log(), f.log()+".1"); err != nil {
		return fmt.Errorf("set the runner's log aside: %w", err)
	}
	return nil
}

// logTail is the last whole lines of the log; empty when it cannot be read.
func (f revisionFiles) logTail() string {
	log, err := os.Open(f.log())
	if err != nil {
		return ""
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return ""
	}
	data := make([]byte, min(info.Size(), tailBytes))
	if _, err := log.ReadAt(data, info.Size()-int64(len(data))); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	text := string(data)
	if info.Size() > tailBytes {
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	return strings.ToValidUTF8(strings.TrimSpace(text), "�")
}
