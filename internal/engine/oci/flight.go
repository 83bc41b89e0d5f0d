package oci

import (
	"context"
	"sync"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// flights lets those who want the same thing at the same time share the work.
// The work goes on while anyone waits for it and is cancelled when the last one
// has left.
type flights struct {
	mu      sync.Mutex
	current map[string]*flight
	owner   sync.WaitGroup
}

type flight struct {
	cancel  context.CancelFunc
	done    chan struct{}
	image   storedImage
	err     error
	waiters int

	mu       sync.Mutex
	progress map[*progressListener]struct{}
}

type progressListener struct{ tell func(engine.PullProgress) }

func newFlights() *flights { return &flights{current: make(map[string]*flight)} }

// do returns what work returns for key. progress may be nil.
func (f *flights) do(ctx context.Context, key string, progress func(engine.PullProgress), work func(context.Context, func(engine.PullProgress)) (storedImage, error)) (storedImage, error) {
	f.mu.Lock()
	shared, running := f.current[key]
	if !running {
		workCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		shared = &flight{cancel: cancel, done: make(chan struct{}), progress: make(map[*progressListener]struct{})}
		f.current[key] = shared
		f.owner.Go(func() {
			shared.image, shared.err = work(workCtx, shared.report)
			f.forget(key, shared)
			cancel()
			close(shared.done)
		})
	}
	shared.waiters++
	f.mu.Unlock()

	listener := &progressListener{progress}
	shared.listen(listener)
	defer f.leave(key, shared, listener)
	select {
	case <-shared.done:
		return shared.image, shared.err
	case <-ctx.Done():
		return storedImage{}, ctx.Err()
	}
}

func (f *flights) leave(key string, shared *flight, listener *progressListener) {
	shared.ignore(listener)
	f.mu.Lock()
	defer f.mu.Unlock()
	shared.waiters--
	if shared.waiters == 0 {
		// Whoever comes next must not join work that is being cancelled.
		f.forgetLocked(key, shared)
		shared.cancel()
	}
}

func (f *flights) forget(key string, shared *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked(key, shared)
}

func (f *flights) forgetLocked(key string, shared *flight) {
	if f.current[key] == shared {
		delete(f.current, key)
	}
}

// wait returns when no work is left.
func (f *flights) wait() { f.owner.Wait() }

func (f *flight) listen(listener *progressListener) {
	if listener.tell == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.progress[listener] = struct{}{}
}

func (f *flight) ignore(listener *progressListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.progress, listener)
}

func (f *flight) report(progress engine.PullProgress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for listener := range f.progress {
		listener.tell(progress)
	}
}
