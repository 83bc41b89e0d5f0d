package agent

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errRefused is a start after the main process's end.
var errRefused = errors.New("the sandbox is ending")

// reaper starts processes and collects those that end: the ones it started,
// and as PID 1 also every orphan of the sandbox.
//
// Starting and collecting exclude each other. So an end is never collected
// before its process is known, and a process that is known and not collected
// still owns its number.
type reaper struct {
	init bool

	mu       sync.Mutex
	refusing bool
	lineage  lineage
	oomScore oomScore
	children map[int]*process
}

// process is one that the reaper started. Its number is also that of its
// session.
type process struct {
	reaper *reaper
	pid    int
	tag    uint64
	// ended is closed after exit was set.
	ended chan struct{}
	exit  exit
}

// exit is how a process ended.
type exit struct {
	// code is 128+n when signal n ended it.
	code   int32
	signal int32
	time   time.Time
}

func newReaper(init bool) *reaper {
	return &reaper{init: init, lineage: newLineage(), oomScore: readOOMScore(), children: map[int]*process{}}
}

// start runs a program; the error is errRefused or from the system.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (*process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusing {
		return nil, errRefused
	}
	tag := r.lineage.mark()
	r.oomScore.raise()
	pid, err := syscall.ForkExec(path, argv, attr)
	r.oomScore.restore()
	if err != nil {
		return nil, err
	}
	p := &process{reaper: r, pid: pid, tag: tag, ended: make(chan struct{})}
	r.children[pid] = p
	return p, nil
}

// refuse makes every later start fail.
func (r *reaper) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusing = true
}

// collect takes what has ended and reports whether no process is left.
func (r *reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.init {
		for {
			collected, none := r.collectOneLocked(-1)
			if !collected {
				// Everything in the sandbox descends from PID 1, and orphans come
				// back to it: without a child there is nobody else.
				return none
			}
		}
	}
	for pid := range r.children {
		r.collectOneLocked(pid)
	}
	return len(r.children) == 0
}

// collectOneLocked waits for pid (-1: any child) without blocking. none says
// that there is no such child, ended or not.
func (r *reaper) collectOneLocked(which int) (collected, none bool) {
	var status unix.WaitStatus
	pid, err := unix.Wait4(which, &status, unix.WNOHANG, nil)
	for errors.Is(err, unix.EINTR) {
		pid, err = unix.Wait4(which, &status, unix.WNOHANG, nil)
	}
	if err != nil || pid <= 0 {
		return false, errors.Is(err, unix.ECHILD)
	}
	if p := r.children[pid]; p != nil {
		delete(r.children, pid)
		p.exit = exitOf(status)
		close(p.ended)
	}
	return true, false
}

func exitOf(status unix.WaitStatus) exit {
	e := exit{time: time.Now()}
	if status.Signaled() {
		e.signal = int32(status.Signal())
		e.code = 128 + e.signal
	} else {
		e.code = int32(status.ExitStatus())
	}
	return e
}

// killAll sends SIGKILL to everything but this process.
func (r *reaper) killAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The second condition is the first one's proof: on a process that is not
	// PID 1, -1 would mean the whole machine.
	if r.init && unix.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	for _, p := range r.children {
		for _, pid := range r.lineage.descendants(p, true) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
}

// send sends a signal to the process itself, if it has not been collected.
func (p *process) send(signal unix.Signal) {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.reaper.children[p.pid] == p {
		_ = unix.Kill(p.pid, signal)
	}
}
