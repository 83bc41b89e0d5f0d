package gateway_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// memoryStore is a gateway.Store that survives a gateway, as a database does.
type memoryStore struct {
	mu      sync.Mutex
	records map[string]*gateway.Record
	// reads counts what went to the store for one sandbox.
	reads int
	// history is every state that a sandbox was in.
	history map[string][]sandboxv1.State
}

func newMemoryStore() *memoryStore {
	return &memoryStore{records: map[string]*gateway.Record{}, history: map[string][]sandboxv1.State{}}
}

func copyOf(r *gateway.Record) *gateway.Record {
	out := *r
	out.Spec, out.Status = proto.CloneOf(r.Spec), proto.CloneOf(r.Status)
	out.RequestDigest = bytes.Clone(r.RequestDigest)
	return &out
}

func (m *memoryStore) put(r *gateway.Record) {
	m.records[r.SandboxID] = copyOf(r)
	past := m.history[r.SandboxID]
	if state := r.Status.GetState(); len(past) == 0 || past[len(past)-1] != state {
		m.history[r.SandboxID] = append(past, state)
	}
}

func (m *memoryStore) InsertSandbox(_ context.Context, r *gateway.Record) (*gateway.Record, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.RequestID != "" {
		for _, other := range m.records {
			if other.OrganizationID == r.OrganizationID && other.RequestID == r.RequestID {
				return copyOf(other), false, nil
			}
		}
	}
	m.put(r)
	return copyOf(r), true, nil
}

func (m *memoryStore) SandboxByRequest(_ context.Context, org, requestID string) (*gateway.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if r.OrganizationID == org && r.RequestID == requestID {
			return copyOf(r), nil
		}
	}
	return nil, gateway.ErrSandboxNotFound
}

func (m *memoryStore) Sandbox(_ context.Context, org, id string) (*gateway.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if r := m.records[id]; r != nil && r.OrganizationID == org {
		return copyOf(r), nil
	}
	return nil, gateway.ErrSandboxNotFound
}

func (m *memoryStore) Sandboxes(_ context.Context, q gateway.ListQuery) ([]*gateway.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*gateway.Record
	for _, r := range m.records {
		live := r.EndTime.IsZero()
		if r.OrganizationID != q.OrganizationID || (!live && !q.IncludeEnded) ||
			(q.State != 0 && q.State != r.Status.GetState()) ||
			(len(q.RunnerIDs) > 0 && !slices.Contains(q.RunnerIDs, r.RunnerID)) ||
			slices.ContainsFunc(q.Tags, func(tag string) bool { return !slices.Contains(r.Spec.GetTags(), tag) }) {
			continue
		}
		if q.AfterSandboxID != "" && newestFirst(r.CreateTime, r.SandboxID, q.AfterCreateTime, q.AfterSandboxID) <= 0 {
			continue
		}
		out = append(out, copyOf(r))
	}
	slices.SortFunc(out, func(a, b *gateway.Record) int {
		return newestFirst(a.CreateTime, a.SandboxID, b.CreateTime, b.SandboxID)
	})
	return out[:min(len(out), q.Limit)], nil
}

func newestFirst(at time.Time, aID string, bt time.Time, bID string) int {
	return cmp.Or(bt.Compare(at), cmp.Compare(bID, aID))
}

func (m *memoryStore) LiveSandboxes(_ context.Context, key gateway.RunnerKey) ([]*gateway.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*gateway.Record
	for _, r := range m.records {
		if r.OrganizationID == key.OrganizationID && r.RunnerID == key.RunnerID && r.EndTime.IsZero() {
			out = append(out, copyOf(r))
		}
	}
	return out, nil
}

func (m *memoryStore) ChangeSandbox(_ context.Context, org, id string, change func(*gateway.Record) bool) (*gateway.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[id]
	if r == nil || r.OrganizationID != org {
		return nil, gateway.ErrSandboxNotFound
	}
	out := copyOf(r)
	if change(out) {
		m.put(out)
	}
	return copyOf(out), nil
}

func (m *memoryStore) DeleteSandboxesEndedBefore(_ context.Context, before time.Time) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var count int64
	for id, r := range m.records {
		if !r.EndTime.IsZero() && r.EndTime.Before(before) {
			delete(m.records, id)
			count++
		}
	}
	return count, nil
}

func (m *memoryStore) statesOf(id string) []sandboxv1.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.history[id])
}

func (m *memoryStore) readCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}

// declared is a gateway.Runners of runners that a test declares.
type declared struct {
	mu           sync.Mutex
	runners      map[gateway.RunnerKey]gateway.Runner
	credentials  map[string]gateway.RunnerIdentity
	connections  map[gateway.RunnerIdentity]int
	heartbeats   int
	disconnected chan gateway.RunnerIdentity
}

func newDeclared() *declared {
	return &declared{
		runners:      map[gateway.RunnerKey]gateway.Runner{},
		credentials:  map[string]gateway.RunnerIdentity{},
		connections:  map[gateway.RunnerIdentity]int{},
		disconnected: make(chan gateway.RunnerIdentity, 64),
	}
}

func (d *declared) declare(r gateway.Runner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runners[r.RunnerKey] = r
}

func (d *declared) remove(key gateway.RunnerKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.runners, key)
}

// credential is one for a process of that revision.
func (d *declared) credential(identity gateway.RunnerIdentity) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	secret := identity.OrganizationID + "/" + identity.RunnerID + "/" + string('0'+identity.Revision)
	d.credentials[secret] = identity
	return secret
}

func (d *declared) Runners(_ context.Context, org string) ([]gateway.Runner, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []gateway.Runner
	for key, r := range d.runners {
		if key.OrganizationID == org {
			out = append(out, r)
		}
	}
	return out, nil
}

func (d *declared) Runner(_ context.Context, key gateway.RunnerKey) (gateway.Runner, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.runners[key]
	return r, ok, nil
}

func (d *declared) Enroll(_ context.Context, token, _ string) (gateway.RunnerIdentity, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	identity, ok := d.credentials[token]
	if !ok {
		return gateway.RunnerIdentity{}, "", gateway.ErrUnknownCredential
	}
	return identity, token, nil
}

func (d *declared) Authenticate(_ context.Context, credential string) (gateway.RunnerIdentity, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch identity, ok := d.credentials[credential]; {
	case credential == "broken":
		return gateway.RunnerIdentity{}, errors.New("the store is down")
	case !ok:
		return gateway.RunnerIdentity{}, gateway.ErrUnknownCredential
	default:
		return identity, nil
	}
}

func (d *declared) Connected(_ context.Context, identity gateway.RunnerIdentity, _ *runnerv1.DescribeResponse) (gateway.PolicySnapshot, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections[identity]++
	return d.runners[identity.RunnerKey].Policy, nil
}

func (d *declared) Disconnected(_ context.Context, identity gateway.RunnerIdentity) {
	d.disconnected <- identity
}

func (d *declared) Heartbeat(context.Context, gateway.RunnerIdentity, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heartbeats++
}
