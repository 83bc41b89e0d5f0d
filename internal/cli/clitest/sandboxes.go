package clitest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// MissingImage is an image whose sandboxes fail to start.
const MissingImage = "registry.invalid/missing:1"

// GreedyCPU is a request that the policy refuses.
const GreedyCPU = "64"

// MaxFileBytes is what the fake reads and writes in one call, small so that
// tests of larger files are quick.
const MaxFileBytes = 1 << 20

// Sandboxes is the fake's SandboxService.
type Sandboxes struct {
	sandboxv1connect.UnimplementedSandboxServiceHandler

	// Logs answers StreamLogs; nil sends nothing.
	Logs func(request *sandboxv1.StreamLogsRequest, send func(*sandboxv1.LogEntry) error) error
	// OnExec, when not nil, is told of each command that has started. Its error
	// kills the command and ends the stream.
	OnExec func(init *sandboxv1.ExecStreamInit) error
	// Refuse, when not nil, is the answer to every command.
	Refuse error

	mu       sync.Mutex
	all      []*sandboxv1.Sandbox
	requests map[string]string
	files    map[string][]byte
	execs    sync.WaitGroup
}

func newSandboxes() *Sandboxes {
	return &Sandboxes{requests: map[string]string{}, files: map[string][]byte{}}
}

func (s *Sandboxes) wait() { s.execs.Wait() }

// Live lists the ids of sandboxes that have not ended.
func (s *Sandboxes) Live() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, sandbox := range s.all {
		if live(sandbox.GetStatus().GetState()) {
			ids = append(ids, sandbox.GetSandboxId())
		}
	}
	return ids
}

// Last is the newest sandbox; nil when there is none.
func (s *Sandboxes) Last() *sandboxv1.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	return proto.CloneOf(s.all[len(s.all)-1])
}

// File is what was written to a path.
func (s *Sandboxes) File(path string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.files[path])
}

// Change alters the status of a sandbox, as things that happen to it do.
func (s *Sandboxes) Change(id string, change func(*sandboxv1.SandboxStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sandbox := s.find(id); sandbox != nil {
		change(sandbox.GetStatus())
	}
}

func live(state sandboxv1.State) bool {
	return state == sandboxv1.State_STATE_CREATING || state == sandboxv1.State_STATE_RUNNING
}

func (s *Sandboxes) find(id string) *sandboxv1.Sandbox {
	for _, sandbox := range s.all {
		if sandbox.GetSandboxId() == id {
			return sandbox
		}
	}
	return nil
}

func notFound(id string) error {
	return apierr.New(apierr.SandboxNotFound, "there is no sandbox %q", id)
}

// CreateSandbox is part of the service.
func (s *Sandboxes) CreateSandbox(_ context.Context, request *sandboxv1.CreateSandboxRequest) (*sandboxv1.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	container := request.GetSandbox().GetSpec().GetContainers()[0]
	if container.GetResourceRequirements().GetLimits().GetCpu() == GreedyCPU {
		return nil, apierr.Invalid(apierr.PolicyViolation, []apierr.Violation{
			{Field: "spec.containers[0].resource_requirements.limits.cpu", Description: "64 is more than the policy's max_cpu of 8: ask for at most 8"},
			{Field: "spec.containers[0].resource_requirements.limits.gpu.count", Description: "the policy allows no GPU"},
		})
	}
	if id, repeated := s.requests[request.GetRequestId()]; repeated {
		return proto.CloneOf(s.find(id)), nil
	}
	sandbox := &sandboxv1.Sandbox{
		SandboxId: "sandbox-" + strconv.Itoa(len(s.all)+1),
		Spec:      request.GetSandbox().GetSpec(),
		Status: &sandboxv1.SandboxStatus{
			State: sandboxv1.State_STATE_CREATING, RunnerId: "runner-1",
			CreateTime: timestamppb.Now(),
		},
	}
	s.requests[request.GetRequestId()] = sandbox.GetSandboxId()
	s.all = append(s.all, sandbox)
	return proto.CloneOf(sandbox), nil
}

// GetSandbox is part of the service. A look moves a sandbox one state on.
func (s *Sandboxes) GetSandbox(_ context.Context, request *sandboxv1.GetSandboxRequest) (*sandboxv1.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sandbox := s.find(request.GetSandboxId())
	if sandbox == nil {
		return nil, notFound(request.GetSandboxId())
	}
	status := sandbox.GetStatus()
	switch status.GetState() {
	case sandboxv1.State_STATE_CREATING:
		status.State = sandboxv1.State_STATE_RUNNING
		if sandbox.GetSpec().GetContainers()[0].GetImage() == MissingImage {
			status.State, status.StateReason = sandboxv1.State_STATE_FAILED, "the registry has no image "+MissingImage
		}
	case sandboxv1.State_STATE_TERMINATING:
		status.State = sandboxv1.State_STATE_TERMINATED
	default: // stays as it is
	}
	return proto.CloneOf(sandbox), nil
}

// ListSandboxes is part of the service; it answers one sandbox a page.
func (s *Sandboxes) ListSandboxes(_ context.Context, request *sandboxv1.ListSandboxesRequest) (*sandboxv1.ListSandboxesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var matching []*sandboxv1.Sandbox
	for _, sandbox := range s.all {
		state := sandbox.GetStatus().GetState()
		if (request.GetState() == 0 || state == request.GetState()) && (live(state) || request.GetShowTerminated() || request.GetState() != 0) {
			matching = append(matching, proto.CloneOf(sandbox))
		}
	}
	start, _ := strconv.Atoi(request.GetPageToken())
	if start >= len(matching) {
		return &sandboxv1.ListSandboxesResponse{}, nil
	}
	response := &sandboxv1.ListSandboxesResponse{Sandboxes: matching[start : start+1]}
	if start+1 < len(matching) {
		response.NextPageToken = strconv.Itoa(start + 1)
	}
	return response, nil
}

// DeleteSandbox is part of the service.
func (s *Sandboxes) DeleteSandbox(_ context.Context, request *sandboxv1.DeleteSandboxRequest) (*sandboxv1.DeleteSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sandbox := s.find(request.GetSandboxId())
	if sandbox == nil && request.GetAllowMissing() {
		return &sandboxv1.DeleteSandboxResponse{}, nil
	}
	if sandbox == nil {
		return nil, notFound(request.GetSandboxId())
	}
	if live(sandbox.GetStatus().GetState()) {
		sandbox.Status.State = sandboxv1.State_STATE_TERMINATING
	}
	return &sandboxv1.DeleteSandboxResponse{Sandbox: proto.CloneOf(sandbox)}, nil
}

// WriteFile is part of the service.
func (s *Sandboxes) WriteFile(_ context.Context, request *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	if len(request.GetContent()) > MaxFileBytes {
		return nil, tooLarge(request.GetPath(), len(request.GetContent()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[request.GetPath()] = request.GetContent()
	return &sandboxv1.WriteFileResponse{}, nil
}

// ReadFile is part of the service.
func (s *Sandboxes) ReadFile(_ context.Context, request *sandboxv1.ReadFileRequest) (*sandboxv1.ReadFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.files[request.GetPath()]
	if !ok {
		return nil, apierr.New(apierr.FileNotFound, "there is no file %s in the sandbox", request.GetPath())
	}
	if len(content) > MaxFileBytes {
		return nil, tooLarge(request.GetPath(), len(content))
	}
	return &sandboxv1.ReadFileResponse{Content: content}, nil
}

// Put makes a file, of any size.
func (s *Sandboxes) Put(path string, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = content
}

func tooLarge(path string, size int) error {
	return apierr.New(apierr.FileTooLarge, "%s has %d bytes; the most is %d", path, size, MaxFileBytes).
		With("size_bytes", strconv.Itoa(size)).With("max_size_bytes", strconv.Itoa(MaxFileBytes))
}

// StreamLogs is part of the service.
func (s *Sandboxes) StreamLogs(_ context.Context, request *sandboxv1.StreamLogsRequest, stream *connect.ServerStream[sandboxv1.LogEntry]) error {
	if s.Logs == nil {
		return nil
	}
	return s.Logs(request, stream.Send)
}

// StreamExec is part of the service; it runs the command on this machine.
func (s *Sandboxes) StreamExec(ctx context.Context, stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) error {
	s.execs.Add(1)
	defer s.execs.Done()
	first, err := stream.Receive()
	if err != nil {
		return fmt.Errorf("receive the first frame: %w", err)
	}
	if s.Refuse != nil {
		return s.Refuse
	}
	init := first.GetInit()
	s.mu.Lock()
	sandbox := s.find(init.GetSandboxId())
	s.mu.Unlock()
	if sandbox == nil {
		return notFound(init.GetSandboxId())
	}
	return runProcess(ctx, init, stream, s.OnExec)
}
