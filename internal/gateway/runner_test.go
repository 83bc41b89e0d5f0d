package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

// host is what a runner's machine keeps: its sandboxes outlive its processes.
type host struct {
	mu        sync.Mutex
	sandboxes map[string]*runnerv1.SandboxRecord
	watchers  map[chan *runnerv1.SandboxRecord]struct{}
	deleted   []string
	graces    []int32
	forgotten []string
	created   []string
	policies  []string
	execs     int
	described int
	// killed counts execs whose call was cancelled.
	killed chan struct{}

	// gate, when set, holds CreateSandbox back until it is closed.
	gate chan struct{}
	// deleteGate does so with DeleteSandbox.
	deleteGate chan struct{}
	// refuse, when set, is CreateSandbox's answer.
	refuse error
	// standby refuses to be watched.
	standby bool
	// exits, when set, is how the main process ends after a SIGTERM.
	exits sandboxv1.State
}

func newHost() *host {
	return &host{
		sandboxes: map[string]*runnerv1.SandboxRecord{},
		watchers:  map[chan *runnerv1.SandboxRecord]struct{}{},
		killed:    make(chan struct{}, 64),
		exits:     sandboxv1.State_STATE_COMPLETED,
	}
}

// set changes a sandbox and tells who watches.
func (h *host) set(id string, edit func(*sandboxv1.SandboxStatus)) *runnerv1.SandboxRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.setLocked(id, edit)
}

func (h *host) setLocked(id string, edit func(*sandboxv1.SandboxStatus)) *runnerv1.SandboxRecord {
	r := h.sandboxes[id]
	if r == nil {
		r = &runnerv1.SandboxRecord{SandboxId: id, Status: &sandboxv1.SandboxStatus{}}
	}
	r = proto.CloneOf(r)
	edit(r.Status)
	r.Generation++
	h.sandboxes[id] = r
	for w := range h.watchers {
		w <- proto.CloneOf(r)
	}
	return proto.CloneOf(r)
}

// exit ends the main process of a sandbox by itself.
func (h *host) exit(id string, state sandboxv1.State, code int32) {
	h.set(id, func(s *sandboxv1.SandboxStatus) {
		s.State, s.ExitCode = state, proto.Int32(code)
		s.EndTime = timestamppb.Now()
	})
}

// lose forgets a sandbox without a word, as a machine that was replaced does.
func (h *host) lose(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sandboxes, id)
}

func (h *host) has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sandboxes[id] != nil
}

// sees runs look under the host's lock.
func (h *host) sees(look func(*host) bool) func() bool {
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return look(h)
	}
}

// process is one process of a runner; it serves RunnerService.
type process struct {
	*host
	identity gateway.RunnerIdentity
	capacity *runnerv1.Capacity

	mu      sync.Mutex
	policy  *runnerv1.SetPolicyRequest
	stopped chan struct{}
}

func (p *process) Describe(context.Context, *runnerv1.DescribeRequest) (*runnerv1.DescribeResponse, error) {
	p.host.mu.Lock()
	p.described++
	p.host.mu.Unlock()
	return &runnerv1.DescribeResponse{
		RunnerId: p.identity.RunnerID, Revision: p.identity.Revision, Version: "1.0.0", Architecture: "amd64",
		Runtime: "fake", Capacity: p.capacity,
	}, nil
}

func (p *process) SetPolicy(_ context.Context, req *runnerv1.SetPolicyRequest) (*runnerv1.SetPolicyResponse, error) {
	p.mu.Lock()
	p.policy = req
	p.mu.Unlock()
	p.host.mu.Lock()
	p.policies = append(p.policies, req.GetEtag())
	p.host.mu.Unlock()
	return &runnerv1.SetPolicyResponse{}, nil
}

func (p *process) WatchSandboxes(ctx context.Context, _ *runnerv1.WatchSandboxesRequest, stream *connect.ServerStream[runnerv1.WatchSandboxesResponse]) error {
	changes := make(chan *runnerv1.SandboxRecord, 10_000)
	p.host.mu.Lock()
	if p.standby {
		p.host.mu.Unlock()
		return connect.NewError(connect.CodeUnavailable, errors.New("another process serves"))
	}
	for _, r := range p.sandboxes {
		changes <- proto.CloneOf(r)
	}
	first := len(changes)
	p.watchers[changes] = struct{}{}
	p.host.mu.Unlock()
	defer func() {
		p.host.mu.Lock()
		delete(p.watchers, changes)
		p.host.mu.Unlock()
	}()
	for range first {
		if err := sendRecord(stream, <-changes); err != nil {
			return err
		}
	}
	err := stream.Send(&runnerv1.WatchSandboxesResponse{Event: &runnerv1.WatchSandboxesResponse_InSync{InSync: true}})
	for err == nil {
		select {
		case r := <-changes:
			err = sendRecord(stream, r)
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stopped:
			return nil
		}
	}
	return err
}

func sendRecord(stream *connect.ServerStream[runnerv1.WatchSandboxesResponse], r *runnerv1.SandboxRecord) error {
	return stream.Send(&runnerv1.WatchSandboxesResponse{Event: &runnerv1.WatchSandboxesResponse_Sandbox{Sandbox: r}})
}

func (p *process) CreateSandbox(ctx context.Context, req *runnerv1.CreateSandboxRequest) (*runnerv1.CreateSandboxResponse, error) {
	p.host.mu.Lock()
	gate, refuse, known := p.gate, p.refuse, p.sandboxes[req.GetSandboxId()] != nil
	p.created = append(p.created, req.GetSandboxId())
	p.host.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if !known {
		p.set(req.GetSandboxId(), func(s *sandboxv1.SandboxStatus) { s.State = sandboxv1.State_STATE_CREATING })
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	r := p.sandboxes[req.GetSandboxId()]
	if r != nil && r.GetStatus().GetState() == sandboxv1.State_STATE_CREATING {
		r = p.setLocked(req.GetSandboxId(), func(s *sandboxv1.SandboxStatus) {
			s.State, s.StartTime = sandboxv1.State_STATE_RUNNING, timestamppb.Now()
		})
	}
	return &runnerv1.CreateSandboxResponse{Sandbox: r}, nil
}

func (p *process) DeleteSandbox(ctx context.Context, req *runnerv1.DeleteSandboxRequest) (*runnerv1.DeleteSandboxResponse, error) {
	p.host.mu.Lock()
	gate := p.deleteGate
	p.deleted = append(p.deleted, req.GetSandboxId())
	p.graces = append(p.graces, req.GetGracePeriodSeconds())
	p.host.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	r := p.sandboxes[req.GetSandboxId()]
	if r == nil {
		return &runnerv1.DeleteSandboxResponse{}, nil
	}
	if state := r.GetStatus().GetState(); state != sandboxv1.State_STATE_COMPLETED && state != sandboxv1.State_STATE_FAILED {
		r = p.setLocked(req.GetSandboxId(), func(s *sandboxv1.SandboxStatus) {
			s.State, s.ExitCode, s.StateReason = p.exits, proto.Int32(143), "killed by signal 15"
		})
	}
	return &runnerv1.DeleteSandboxResponse{Sandbox: r}, nil
}

func (p *process) ForgetSandbox(_ context.Context, req *runnerv1.ForgetSandboxRequest) (*runnerv1.ForgetSandboxResponse, error) {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	p.forgotten = append(p.forgotten, req.GetSandboxId())
	delete(p.sandboxes, req.GetSandboxId())
	return &runnerv1.ForgetSandboxResponse{}, nil
}

// StreamExec knows a few commands:
//
//	echo ARG…    writes its arguments to stdout
//	cat          copies stdin to stdout
//	both N       writes N bytes to stdout and to stderr
//	bulk N SIZE  writes N frames of SIZE bytes to stdout
//	endless      writes to stdout for ever
//	hang         writes nothing until it is killed
//	vanish       ends the stream without an exit status
//	exit N
func (p *process) StreamExec(ctx context.Context, stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	p.host.mu.Lock()
	p.execs++
	p.host.mu.Unlock()
	command := first.GetInit().GetCommand()
	if err := stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Ready{
		Ready: &sandboxv1.ExecStreamReady{ReadyTime: timestamppb.Now()},
	}}); err != nil {
		return err
	}
	code := 0
	switch command[0] {
	case "echo":
		err = sendOutput(stream, sandboxv1.ExecStreamOutput_STREAM_STDOUT, []byte(strings.Join(command[1:], " ")+"\n"))
	case "cat":
		err = copyInput(stream)
	case "both":
		n, _ := strconv.Atoi(command[1])
		for _, to := range []sandboxv1.ExecStreamOutput_Stream{sandboxv1.ExecStreamOutput_STREAM_STDOUT, sandboxv1.ExecStreamOutput_STREAM_STDERR} {
			for left := n; left > 0 && err == nil; left -= 1000 {
				err = sendOutput(stream, to, make([]byte, min(left, 1000)))
			}
		}
	case "bulk":
		n, _ := strconv.Atoi(command[1])
		size, _ := strconv.Atoi(command[2])
		chunk := make([]byte, size)
		for ; n > 0 && err == nil; n-- {
			err = sendOutput(stream, sandboxv1.ExecStreamOutput_STREAM_STDOUT, chunk)
		}
	case "endless":
		chunk := make([]byte, 32<<10)
		for err == nil {
			err = sendOutput(stream, sandboxv1.ExecStreamOutput_STREAM_STDOUT, chunk)
		}
	case "hang":
		<-ctx.Done()
		err = ctx.Err()
	case "vanish":
		return nil
	case "exit":
		code, _ = strconv.Atoi(command[1])
	}
	if err != nil {
		p.killed <- struct{}{}
		return err
	}
	return stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Exit{
		Exit: &sandboxv1.ExecStreamExit{ExitCode: int32(code)},
	}})
}

func sendOutput(stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse], to sandboxv1.ExecStreamOutput_Stream, data []byte) error {
	return stream.Send(&sandboxv1.ExecStreamResponse{Message: &sandboxv1.ExecStreamResponse_Output{
		Output: &sandboxv1.ExecStreamOutput{Stream: to, Data: data},
	}})
}

func copyInput(stream *connect.BidiStream[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]) error {
	for {
		msg, err := stream.Receive()
		if errors.Is(err, io.EOF) || msg.GetClose() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := sendOutput(stream, sandboxv1.ExecStreamOutput_STREAM_STDOUT, msg.GetStdin()); err != nil {
			return err
		}
	}
}

func (p *process) StreamLogs(ctx context.Context, req *sandboxv1.StreamLogsRequest, stream *connect.ServerStream[sandboxv1.LogEntry]) error {
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		if err := stream.Send(&sandboxv1.LogEntry{Data: []byte(line), LogSessionId: "s", NextLogOffset: uint64(len(line) * (i + 1))}); err != nil {
			return err
		}
	}
	if !req.GetFollow() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (p *process) WriteFile(context.Context, *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	return &sandboxv1.WriteFileResponse{}, nil
}

func (p *process) ReadFile(_ context.Context, req *sandboxv1.ReadFileRequest) (*sandboxv1.ReadFileResponse, error) {
	switch req.GetPath() {
	case "/all-bytes":
		data := make([]byte, 256)
		for i := range data {
			data[i] = byte(i)
		}
		return &sandboxv1.ReadFileResponse{Content: data}, nil
	case "/large":
		return &sandboxv1.ReadFileResponse{Content: make([]byte, 32<<20+1)}, nil
	}
	return nil, apierr.Connect(apierr.New(apierr.FileNotFound, "no file %q", req.GetPath()).With("filepath", req.GetPath()))
}

func (p *process) ListImages(context.Context, *adminv1.ListImagesRequest) (*adminv1.ListImagesResponse, error) {
	return &adminv1.ListImagesResponse{Images: []*adminv1.Image{{Digest: "sha256:1"}}}, nil
}

func (p *process) PruneImages(context.Context, *adminv1.PruneImagesRequest) (*adminv1.PruneImagesResponse, error) {
	return &adminv1.PruneImagesResponse{}, nil
}

// start connects a process of the runner to the gateway; stop ends it as kill
// -9 would.
func (e *environment) start(t testing.TB, h *host, identity gateway.RunnerIdentity) (p *process, stop func()) {
	t.Helper()
	return e.startAs(t, h, identity, identity)
}

// startAs is start for a process whose credential is of another one.
func (e *environment) startAs(t testing.TB, h *host, identity, credential gateway.RunnerIdentity) (p *process, stop func()) {
	t.Helper()
	p = &process{
		host: h, identity: identity, stopped: make(chan struct{}),
		capacity: &runnerv1.Capacity{CpuMillicores: 8000, MemoryBytes: 16 << 30},
	}
	mux := http.NewServeMux()
	mux.Handle(runnerv1connect.NewRunnerServiceHandler(p))
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		err := tunnel.Serve(ctx, tunnel.Options{
			ServerURL:  e.server.URL,
			Credential: e.runners.credential(credential),
			Handler:    mux,
			Logger:     slog.New(slog.DiscardHandler),
			Sleep: func(ctx context.Context, _ time.Duration) error {
				// Soon, whatever the pause would be.
				timer := time.NewTimer(5 * time.Millisecond)
				defer timer.Stop()
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
				return ctx.Err()
			},
		})
		if err != nil {
			t.Errorf("the runner's tunnel: %v", err)
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			close(p.stopped)
			cancel()
			serving.Wait()
		})
	}
	t.Cleanup(stop)
	return p, stop
}
