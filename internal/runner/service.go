package runner

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/engine"
)

// maxMessageBytes bounds one message in either direction, as the public port
// does.
const maxMessageBytes = 100 << 20

// service answers the gateway.
type service struct {
	runner *runner
	// host is nil in standby.
	host atomic.Pointer[host]
	// leaving ends when the runner does, and with it every stream.
	leaving context.Context
}

var _ runnerv1connect.RunnerServiceHandler = (*service)(nil)

// handler serves the service; every error leaves through apierr, and every
// call ends with the runner.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(runnerv1connect.NewRunnerServiceHandler(s,
		connect.WithReadMaxBytes(maxMessageBytes),
		connect.WithSendMaxBytes(maxMessageBytes),
		connect.WithInterceptors(&boundary{service: s}),
	))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, r.Body)))
	})
}

type bodyKey struct{}

// stopReceiving makes a Receive that waits for the caller fail, so that its
// goroutine can be waited for.
func stopReceiving(ctx context.Context) {
	if body, ok := ctx.Value(bodyKey{}).(io.Closer); ok {
		_ = body.Close() // nothing more is wanted of it
	}
}

// boundary is the interceptor of every call.
type boundary struct {
	service *service
}

// bound ends a call's context with the runner.
func (b *boundary) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.service.leaving, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// answer gives an error its reason; calls that the runner's end has cut off say
// so.
func (b *boundary) answer(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	if b.service.leaving.Err() != nil && ctx.Err() != nil {
		err = errLeaving()
	}
	answer := apierr.Connect(err)
	if connect.CodeOf(answer) == connect.CodeInternal {
		b.service.runner.config.Logger.ErrorContext(ctx, "a call failed", "procedure", procedure, "error", err)
	}
	return answer
}

func (b *boundary) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, done := b.bound(ctx)
		defer done()
		response, err := next(ctx, request)
		if err != nil {
			return nil, b.answer(ctx, request.Spec().Procedure, err)
		}
		return response, nil
	}
}

func (b *boundary) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (b *boundary) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, done := b.bound(ctx)
		defer done()
		return b.answer(ctx, conn.Spec().Procedure, next(ctx, conn))
	}
}

// serving is the host, once this process has the lock.
func (s *service) serving() (*host, error) {
	if h := s.host.Load(); h != nil {
		return h, nil
	}
	return nil, apierr.New(apierr.RunnerUnavailable,
		"this runner process is in standby while another one still serves; try again").RetryAfter(time.Second)
}

func (s *service) Describe(context.Context, *runnerv1.DescribeRequest) (*runnerv1.DescribeResponse, error) {
	r := s.runner
	identity := r.identity()
	return &runnerv1.DescribeResponse{
		RunnerId:      identity.RunnerID,
		Revision:      identity.Revision,
		Version:       r.config.Version,
		Architecture:  r.info.Architecture,
		Runtime:       r.info.Runtime,
		Capacity:      r.ledger.capacity(),
		PolicyEtag:    r.policies.etag(),
		NotApplicable: r.config.NotApplicable,
	}, nil
}

func (s *service) SetPolicy(_ context.Context, request *runnerv1.SetPolicyRequest) (*runnerv1.SetPolicyResponse, error) {
	if err := s.runner.policies.set(request); err != nil {
		return nil, err
	}
	s.runner.config.Logger.Info("policy set", "etag", request.GetEtag())
	return &runnerv1.SetPolicyResponse{}, nil
}

// WatchSandboxes waits in standby: what there is to send is not known before.
func (s *service) WatchSandboxes(ctx context.Context, _ *runnerv1.WatchSandboxesRequest, stream *connect.ServerStream[runnerv1.WatchSandboxesResponse]) error {
	select {
	case <-s.runner.active:
	case <-ctx.Done():
		return ctx.Err()
	}
	h, err := s.serving()
	if err != nil {
		return err
	}
	changes := h.hub.subscribe()
	defer changes.close()
	for _, message := range h.messages() {
		if err := stream.Send(sandboxEvent(message)); err != nil {
			return err
		}
	}
	inSync := &runnerv1.WatchSandboxesResponse{Event: &runnerv1.WatchSandboxesResponse_InSync{InSync: true}}
	if err := stream.Send(inSync); err != nil {
		return err
	}
	for {
		messages, err := changes.next(ctx)
		if err != nil {
			return err
		}
		for _, message := range messages {
			if err := stream.Send(sandboxEvent(message)); err != nil {
				return err
			}
		}
	}
}

func sandboxEvent(message *runnerv1.SandboxRecord) *runnerv1.WatchSandboxesResponse {
	return &runnerv1.WatchSandboxesResponse{Event: &runnerv1.WatchSandboxesResponse_Sandbox{Sandbox: message}}
}

func (s *service) CreateSandbox(ctx context.Context, request *runnerv1.CreateSandboxRequest) (*runnerv1.CreateSandboxResponse, error) {
	h, err := s.serving()
	if err != nil {
		return nil, err
	}
	message, err := h.create(ctx, request)
	if err != nil {
		return nil, err
	}
	return &runnerv1.CreateSandboxResponse{Sandbox: message}, nil
}

func (s *service) DeleteSandbox(ctx context.Context, request *runnerv1.DeleteSandboxRequest) (*runnerv1.DeleteSandboxResponse, error) {
	h, err := s.serving()
	if err != nil {
		return nil, err
	}
	grace := time.Duration(max(request.GetGracePeriodSeconds(), 0)) * time.Second
	message, err := h.delete(ctx, request.GetSandboxId(), grace)
	if err != nil {
		return nil, err
	}
	return &runnerv1.DeleteSandboxResponse{Sandbox: message}, nil
}

func (s *service) ForgetSandbox(ctx context.Context, request *runnerv1.ForgetSandboxRequest) (*runnerv1.ForgetSandboxResponse, error) {
	h, err := s.serving()
	if err != nil {
		return nil, err
	}
	if err := h.forget(ctx, request.GetSandboxId()); err != nil {
		return nil, err
	}
	return &runnerv1.ForgetSandboxResponse{}, nil
}

// target finds the sandbox and container that a call is about.
func (s *service) target(id, container string) (*sandbox, error) {
	h, err := s.serving()
	if err != nil {
		return nil, err
	}
	found, err := h.find(id)
	if err != nil {
		return nil, err
	}
	if only := found.snapshot().Container; container != "" && container != only {
		return nil, apierr.New(apierr.InvalidRequest,
			"container: sandbox %s has no container %q; leave it out or name %q", id, container, only)
	}
	return found, nil
}

func (s *service) ListImages(ctx context.Context, _ *adminv1.ListImagesRequest) (*adminv1.ListImagesResponse, error) {
	images, err := s.runner.config.Engine.Images(ctx)
	if err != nil {
		return nil, err
	}
	return &adminv1.ListImagesResponse{Images: imageMessages(images)}, nil
}

func (s *service) PruneImages(ctx context.Context, _ *adminv1.PruneImagesRequest) (*adminv1.PruneImagesResponse, error) {
	if _, err := s.serving(); err != nil {
		return nil, err
	}
	images, err := s.runner.config.Engine.PruneImages(ctx)
	if err != nil {
		return nil, err
	}
	return &adminv1.PruneImagesResponse{RemovedImages: imageMessages(images)}, nil
}

func imageMessages(images []engine.Image) []*adminv1.Image {
	messages := make([]*adminv1.Image, len(images))
	for i, image := range images {
		messages[i] = &adminv1.Image{
			References:   image.References,
			Digest:       image.Digest,
			SizeBytes:    image.SizeBytes,
			PullTime:     timestamppb.New(image.PullTime),
			SandboxCount: int32(image.SandboxCount),
		}
	}
	return messages
}
