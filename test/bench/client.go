package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"time"

	"connectrpc.com/connect"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// bearer adds the token to every call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, req)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func cleartextHTTP2() *http.Protocols {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return protocols
}

// pollPause is between two looks at a sandbox. Published clients wait 200 ms and
// more; a much shorter pause would measure the polling.
const pollPause = 50 * time.Millisecond

// create starts a sandbox that sleeps and returns when it runs.
func (s *system) create(ctx context.Context) (string, error) {
	sandbox, err := s.sandboxes.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{
		Spec: &sandboxv1.SandboxSpec{Containers: []*sandboxv1.Container{{
			Name: "main", Image: image, Command: "/bin/sleep", Args: []string{"100000"},
			// Requests that fit many times, limits that do not slow it down.
			ResourceRequirements: &sandboxv1.ResourceRequirements{
				Requests: &sandboxv1.Resources{Cpu: "1m", Memory: "16Mi"},
				Limits:   &sandboxv1.Resources{Cpu: "2", Memory: "256Mi"},
			},
		}}},
	}})
	if err != nil {
		return "", err
	}
	id := sandbox.GetSandboxId()
	s.note(id)
	for {
		switch state := sandbox.GetStatus().GetState(); state {
		case sandboxv1.State_STATE_RUNNING:
			return id, nil
		case sandboxv1.State_STATE_CREATING, sandboxv1.State_STATE_PENDING:
		default:
			return "", fmt.Errorf("sandbox is %v: %s", state, sandbox.GetStatus().GetStateReason())
		}
		if sandbox, err = s.look(ctx, id); err != nil {
			return "", err
		}
	}
}

func (s *system) look(ctx context.Context, id string) (*sandboxv1.Sandbox, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(pollPause):
	}
	return s.sandboxes.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
}

// remove ends a sandbox and returns when nothing of it is left.
func (s *system) remove(ctx context.Context, id string) error {
	if _, err := s.sandboxes.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{SandboxId: id}); err != nil {
		return err
	}
	for {
		sandbox, err := s.look(ctx, id)
		if err != nil {
			return err
		}
		state := sandbox.GetStatus().GetState()
		if state == sandboxv1.State_STATE_TERMINATED || state == sandboxv1.State_STATE_FAILED || state == sandboxv1.State_STATE_COMPLETED {
			s.forget(id)
			return nil
		}
	}
}

// removeAll ends every sandbox that is left.
func (s *system) removeAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	const atATime = 8
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for _, id := range s.left() {
		group.Go(func() error { return s.remove(ctx, id) })
	}
	return group.Wait()
}

func (s *system) note(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[id] = struct{}{}
}

func (s *system) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, id)
}

func (s *system) left() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.live))
}

// exec runs a command by StreamExec and returns when its exit has come.
func (s *system) exec(ctx context.Context, id string, command ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.sandboxes.StreamExec(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Init{
		Init: &sandboxv1.ExecStreamInit{SandboxId: id, Command: command},
	}})
	if err != nil {
		return err
	}
	if err := stream.CloseRequest(); err != nil {
		return err
	}
	for {
		message, err := stream.Receive()
		if err != nil {
			return err
		}
		if exit := message.GetExit(); exit != nil {
			if exit.GetExitCode() != 0 {
				return fmt.Errorf("exec %v: exit %d", command, exit.GetExitCode())
			}
			return nil
		}
	}
}

// imageOf makes an image of one layer out of a directory.
func imageOf(directory string) (v1.Image, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	if err := w.AddFS(os.DirFS(directory)); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	built, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}
	return mutate.ConfigFile(built, config)
}
