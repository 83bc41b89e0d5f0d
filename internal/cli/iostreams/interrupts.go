package iostreams

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Interrupts turns the signals that ask this program to end into contexts: the
// first signal ends Work, the second one Cleanup.
type Interrupts struct {
	// Work ends with the first signal: stop, and tidy up.
	Work context.Context
	// Cleanup ends with the second signal: tidy up without waiting.
	Cleanup context.Context

	signals chan os.Signal
	stop    context.CancelFunc
	stopped chan struct{}
}

// CatchInterrupts catches SIGINT, SIGTERM and SIGHUP until Stop. The end of
// parent ends Work too.
func CatchInterrupts(parent context.Context) *Interrupts {
	work, endWork := context.WithCancel(parent)
	cleanup, endCleanup := context.WithCancel(context.WithoutCancel(parent))
	ctx, stop := context.WithCancel(context.WithoutCancel(parent))
	interrupts := &Interrupts{
		Work: work, Cleanup: cleanup,
		signals: make(chan os.Signal, 4),
		stop:    stop,
		stopped: make(chan struct{}),
	}
	signal.Notify(interrupts.signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		defer close(interrupts.stopped)
		defer endCleanup()
		defer endWork()
		for _, end := range []context.CancelFunc{endWork, endCleanup} {
			select {
			case <-ctx.Done():
				return
			case <-interrupts.signals:
				end()
			}
		}
		<-ctx.Done()
	}()
	return interrupts
}

// Stop gives the signals their usual effect again and ends both contexts.
func (i *Interrupts) Stop() {
	signal.Stop(i.signals)
	i.stop()
	<-i.stopped
}
