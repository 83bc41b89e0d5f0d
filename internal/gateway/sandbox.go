package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

// sandbox is a live sandbox in memory: the newest record and who waits for
// the next one. The store stays the truth; a sandbox is changed there first.
type sandbox struct {
	id  string
	key RunnerKey

	// write makes changes of one sandbox follow each other.
	write sync.Mutex
	state atomic.Pointer[sandboxView]

	// creating is set while a job creates it on its runner.
	creating atomic.Bool
	mu       sync.Mutex
	// deletion is the job that ends it on its runner, if there is one.
	deletion *deletion
	readers  readers
}

// sandboxView is a record, read only, and a channel that closes when there is
// a newer one.
type sandboxView struct {
	record  *Record
	changed chan struct{}
}

func newSandbox(record *Record) *sandbox {
	sb := &sandbox{id: record.SandboxID, key: runnerKeyOf(record)}
	sb.state.Store(&sandboxView{record: record, changed: make(chan struct{})})
	return sb
}

func runnerKeyOf(record *Record) RunnerKey {
	return RunnerKey{OrganizationID: record.OrganizationID, RunnerID: record.RunnerID}
}

func (sb *sandbox) view() *sandboxView { return sb.state.Load() }

func (sb *sandbox) record() *Record { return sb.view().record }

func (sb *sandbox) publish(record *Record) {
	old := sb.state.Swap(&sandboxView{record: record, changed: make(chan struct{})})
	close(old.changed)
}

// waitWhile returns the first record of which pending is false, or the newest
// one when ctx ends.
func (sb *sandbox) waitWhile(ctx context.Context, pending func(*Record) bool) (*Record, error) {
	for {
		view := sb.view()
		if !pending(view.record) {
			return view.record, nil
		}
		select {
		case <-view.changed:
		case <-ctx.Done():
			return sb.record(), context.Cause(ctx)
		}
	}
}

func isCreating(record *Record) bool { return record.Status.GetState() == creating }

func isLive(record *Record) bool { return !ended(record.Status.GetState()) }

// readers counts the log streams of a sandbox: its runner keeps what they read
// until the last of them is done.
type readers struct {
	mu    sync.Mutex
	count int
	idle  chan struct{}
}

func (r *readers) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 {
		r.idle = make(chan struct{})
	}
	r.count++
}

func (r *readers) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	if r.count == 0 {
		close(r.idle)
	}
}

// wait returns when nobody reads, or when ctx ends.
func (r *readers) wait(ctx context.Context) {
	r.mu.Lock()
	count, idle := r.count, r.idle
	r.mu.Unlock()
	if count == 0 {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// toAPI is the sandbox as callers see it.
func toAPI(record *Record) *sandboxv1.Sandbox {
	return &sandboxv1.Sandbox{SandboxId: record.SandboxID, Spec: record.Spec, Status: record.Status}
}

// applyObservation changes the record to what its runner reports; false when
// that is old or says nothing new.
func applyObservation(record *Record, observed *runnerv1.SandboxRecord, now time.Time) bool {
	if !isLive(record) || observed.GetGeneration() <= record.Generation {
		return false
	}
	e, ok := observation(observed.GetStatus().GetState())
	if !ok {
		return false
	}
	state, _ := next(record.Status.GetState(), e, record.TerminateRequested)
	record.Status = mergeStatus(record.Status, observed.GetStatus(), state)
	record.Generation = observed.GetGeneration()
	settle(record, now)
	return true
}

// applyEvent changes the record to where the event leads; false when it leads
// nowhere.
func applyEvent(record *Record, e event, reason string, now time.Time) bool {
	state, moved := next(record.Status.GetState(), e, record.TerminateRequested)
	if !moved {
		return false
	}
	status := proto.CloneOf(record.Status)
	status.State = state
	status.StateReason = reason
	record.Status = status
	settle(record, now)
	return true
}

// mergeStatus keeps what the gateway knows better than the runner: where the
// sandbox is, since when, and the state after the table has had its say.
func mergeStatus(stored, observed *sandboxv1.SandboxStatus, state sandboxv1.State) *sandboxv1.SandboxStatus {
	out := proto.CloneOf(observed)
	out.State = state
	out.CreateTime = stored.GetCreateTime()
	out.RunnerId = stored.GetRunnerId()
	out.RunnerGroupId = stored.GetRunnerGroupId()
	out.Services = stored.GetServices()
	out.EffectiveMaxLifetimeSeconds = stored.GetEffectiveMaxLifetimeSeconds()
	out.EffectiveResourceRequirements = stored.GetEffectiveResourceRequirements()
	out.EffectiveResources = stored.GetEffectiveResources()
	out.EffectiveEgress = stored.GetEffectiveEgress()
	out.EffectiveIngress = stored.GetEffectiveIngress()
	out.EffectiveRuntimeClass = stored.GetEffectiveRuntimeClass()
	if out.GetStartTime() == nil {
		out.StartTime = stored.GetStartTime()
	}
	if out.ExitCode == nil {
		out.ExitCode = stored.ExitCode
	}
	if len(out.GetContainerStatuses()) == 0 {
		out.ContainerStatuses = stored.GetContainerStatuses()
	}
	// A state that the table has overruled keeps its own reason.
	if state != observed.GetState() || out.GetStateReason() == "" {
		out.StateReason = stored.GetStateReason()
	}
	return out
}

// settle fills in the times that a state implies (trap 19).
func settle(record *Record, now time.Time) {
	switch state := record.Status.GetState(); {
	case state == running && record.Status.GetStartTime() == nil:
		record.Status.StartTime = timestamppb.New(now)
	case ended(state):
		if record.Status.GetEndTime() == nil {
			record.Status.EndTime = timestamppb.New(now)
		}
		record.EndTime = now
	}
}
