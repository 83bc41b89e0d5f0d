package agent

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// lookPause is how often ended processes are looked for without a SIGCHLD. One
// that never arrives then delays an end instead of hiding it.
const lookPause = time.Second

// signalWatch receives what the agent is sent. As PID 1 it takes every signal
// there is, so that none has a default action by which the workload, or a
// mistake, could end the guest.
type signalWatch struct {
	children chan os.Signal
	others   chan os.Signal
}

func watchSignals(init bool) *signalWatch {
	// One is enough: a collection takes everything that has ended.
	w := &signalWatch{children: make(chan os.Signal, 1), others: make(chan os.Signal, 16)}
	signal.Notify(w.children, unix.SIGCHLD)
	if init {
		signal.Notify(w.others)
	}
	return w
}

func (w *signalWatch) run(ctx context.Context, a *Agent) {
	defer signal.Stop(w.children)
	defer signal.Stop(w.others)
	look := time.NewTicker(lookPause)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.children:
			a.reaper.collect()
		case <-look.C:
			a.reaper.collect()
		case received := <-w.others:
			number, ok := received.(unix.Signal)
			if !ok || !forwarded(number) {
				continue
			}
			if !a.workload.forward(number) && (number == unix.SIGTERM || number == unix.SIGINT) {
				a.requestShutdown()
			}
		}
	}
}

// forwarded says which signals are meant for the main process. The others are
// the kernel's and the runtime's own, or tell the receiver about itself.
func forwarded(number unix.Signal) bool {
	switch number {
	case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGCONT, unix.SIGWINCH:
		return true
	default:
		return number >= 34 // the real-time signals that programs may use
	}
}
