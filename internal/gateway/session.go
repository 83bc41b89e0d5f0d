package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

const (
	// greetingTimeout bounds each of the calls that begin a session.
	greetingTimeout = 10 * time.Second
	// watchPause is between attempts to watch a runner that does not serve yet.
	watchPause = time.Second
	// orphanTimeout bounds the removal of a sandbox that nobody owns.
	orphanTimeout = time.Minute
)

// session is one tunnel of one runner process.
type session struct {
	identity    RunnerIdentity
	conn        *tunnel.Conn
	client      runnerv1connect.RunnerServiceClient
	logger      *slog.Logger
	description *runnerv1.DescribeResponse
	connectedAt time.Time
	// inSync: the runner has told all that it has, and serves.
	inSync atomic.Bool
	// policy makes pushes follow each other, so that the newest is the last.
	policy sync.Mutex
}

// serveTunnel is a session from its first call to the connection's end.
func (g *Gateway) serveTunnel(identity RunnerIdentity, conn *tunnel.Conn) {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	logger := g.logger.With("runner_id", identity.RunnerID, "org_id", identity.OrganizationID, "revision", identity.Revision)
	s := &session{
		identity: identity,
		conn:     conn,
		client: runnerv1connect.NewRunnerServiceClient(&http.Client{Transport: conn}, "http://runner",
			// Both ends are usually near, and compressing costs more than it saves.
			connect.WithAcceptCompression("gzip", nil, nil)),
		logger:      logger,
		connectedAt: g.clock.Now(),
	}
	err := g.runSession(ctx, s)
	if err == nil || ctx.Err() != nil || connect.CodeOf(err) == connect.CodeUnavailable {
		// A runner that is stopped says that it is unavailable, and why that is
		// nobody needs to be told.
		return
	}
	logger.WarnContext(ctx, "a runner's session ended", "error", err)
}

func (g *Gateway) runSession(ctx context.Context, s *session) error {
	if err := s.describe(ctx); err != nil {
		return err
	}
	home := g.registry.runner(s.identity.RunnerKey)
	home.setCapacity(s.description.GetCapacity())
	home.connect(s)
	s.logger.InfoContext(ctx, "runner connected", "version", s.description.GetVersion(), "runtime", s.description.GetRuntime())
	defer func() {
		if left := home.disconnect(s); !left {
			g.runners.Disconnected(context.WithoutCancel(ctx), s.identity)
		}
		s.logger.InfoContext(ctx, "runner disconnected")
	}()
	if err := g.greet(ctx, s); err != nil {
		return err
	}
	for {
		err := g.watch(ctx, home, s)
		if !s.conn.Usable() || connect.CodeOf(err) != connect.CodeUnavailable {
			return err
		}
		// A process that waits for its turn says so this way.
		s.logger.DebugContext(ctx, "the runner cannot be watched yet", "error", err)
		if !g.pause(ctx, watchPause) {
			return nil
		}
	}
}

func (s *session) describe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetingTimeout)
	defer cancel()
	description, err := s.client.Describe(ctx, &runnerv1.DescribeRequest{})
	if err != nil {
		return fmt.Errorf("ask the runner to describe itself: %w", err)
	}
	if description.GetRunnerId() != s.identity.RunnerID || description.GetRevision() != s.identity.Revision {
		return fmt.Errorf("the runner calls itself %q, revision %d, which is not what its credential is for",
			description.GetRunnerId(), description.GetRevision())
	}
	s.description = description
	return nil
}

// greet tells the control plane of the runner, and the runner its policy.
func (g *Gateway) greet(ctx context.Context, s *session) error {
	s.policy.Lock()
	defer s.policy.Unlock()
	policy, err := g.runners.Connected(ctx, s.identity, s.description)
	if err != nil {
		return fmt.Errorf("report the connection: %w", err)
	}
	return s.setPolicy(ctx, policy)
}

func (s *session) setPolicy(ctx context.Context, policy PolicySnapshot) error {
	ctx, cancel := context.WithTimeout(ctx, greetingTimeout)
	defer cancel()
	_, err := s.client.SetPolicy(ctx, &runnerv1.SetPolicyRequest{
		Policy:                policy.Policy,
		Etag:                  policy.ETag,
		EnforceResourceLimits: policy.EnforceResourceLimits,
		ImagePullPolicy:       policy.ImagePullPolicy,
	})
	if err != nil {
		return fmt.Errorf("hand the policy to the runner: %w", err)
	}
	return nil
}

// PushPolicy hands a policy to every process of a runner. One that is not
// connected gets it when it connects.
func (g *Gateway) PushPolicy(ctx context.Context, key RunnerKey, policy PolicySnapshot) error {
	home := g.registry.known(key)
	if home == nil {
		return nil
	}
	var failed []error
	for _, s := range home.connected() {
		s.policy.Lock()
		err := s.setPolicy(ctx, policy)
		s.policy.Unlock()
		if err != nil && s.conn.Usable() {
			failed = append(failed, fmt.Errorf("revision %d: %w", s.identity.Revision, err))
		}
	}
	return errors.Join(failed...)
}

// watch takes what the runner tells until the stream ends.
func (g *Gateway) watch(ctx context.Context, home *runner, s *session) error {
	expected, err := g.takeUp(ctx, home)
	if err != nil {
		return err
	}
	stream, err := s.client.WatchSandboxes(ctx, &runnerv1.WatchSandboxesRequest{})
	if err != nil {
		return fmt.Errorf("watch the runner's sandboxes: %w", err)
	}
	defer func() { _ = stream.Close() }()
	first := map[string]*runnerv1.SandboxRecord{}
	for stream.Receive() {
		msg := stream.Msg()
		switch {
		case msg.GetInSync() && !s.inSync.Load():
			if err := g.reconcile(ctx, s, expected, first); err != nil {
				return err
			}
			first = nil
			home.synced(s)
			s.logger.InfoContext(ctx, "runner serves", "sandboxes", len(home.live()))
		case msg.GetSandbox() == nil:
		case s.inSync.Load():
			if err := g.told(ctx, s, msg.GetSandbox()); err != nil {
				return err
			}
		default:
			first[msg.GetSandbox().GetSandboxId()] = msg.GetSandbox()
		}
	}
	if err := stream.Err(); err != nil {
		return fmt.Errorf("watch the runner's sandboxes: %w", err)
	}
	return errors.New("the runner has stopped reporting its sandboxes")
}

func (s *session) forget(ctx context.Context, sandboxID string) {
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	if _, err := s.client.ForgetSandbox(ctx, &runnerv1.ForgetSandboxRequest{SandboxId: sandboxID}); err != nil {
		s.logger.DebugContext(ctx, "let the runner forget a sandbox", "sandbox_id", sandboxID, "error", err)
	}
}
