package runner

import (
	"context"
	"sync"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

// hub tells subscribers of changed sandboxes. A subscriber that is slow misses
// states in between, never the newest of any sandbox.
type hub struct {
	mu          sync.Mutex
	subscribers map[*subscription]struct{}
}

func newHub() *hub { return &hub{subscribers: map[*subscription]struct{}{}} }

func (h *hub) publish(message *runnerv1.SandboxRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subscribers {
		s.add(message)
	}
}

func (h *hub) subscribe() *subscription {
	s := &subscription{hub: h, ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers[s] = struct{}{}
	return s
}

// subscription is what one subscriber has not been told yet.
type subscription struct {
	hub   *hub
	ready chan struct{}

	mu      sync.Mutex
	order   []string
	pending map[string]*runnerv1.SandboxRecord
}

func (s *subscription) add(message *runnerv1.SandboxRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		s.pending = map[string]*runnerv1.SandboxRecord{}
	}
	id := message.GetSandboxId()
	if _, waiting := s.pending[id]; !waiting {
		s.order = append(s.order, id)
	}
	s.pending[id] = message
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// next waits for changes and returns them, in the order in which their
// sandboxes first changed.
func (s *subscription) next(ctx context.Context) ([]*runnerv1.SandboxRecord, error) {
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := make([]*runnerv1.SandboxRecord, len(s.order))
	for i, id := range s.order {
		changes[i] = s.pending[id]
	}
	s.order, s.pending = nil, nil
	return changes, nil
}

func (s *subscription) close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subscribers, s)
}
