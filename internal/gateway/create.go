package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

const (
	// creationWait is how long CreateSandbox waits for the sandbox to run, which
	// saves its callers a poll.
	creationWait = time.Second
	// creationTimeout is how long a sandbox may be in CREATING, image included.
	creationTimeout = 20 * time.Minute
)

const reasonCreationOverdue = "the sandbox was not created within 20 minutes"

// CreateSandbox implements SandboxService.
func (g *Gateway) CreateSandbox(ctx context.Context, req *sandboxv1.CreateSandboxRequest) (*sandboxv1.Sandbox, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	spec := req.GetSandbox().GetSpec()
	if v := checkCreate(req); v != nil {
		// What stands in the policies is told with it, to save a second try.
		v.addOthers(g.policyViolations(ctx, caller.OrganizationID, spec))
		return nil, v.err()
	}
	if err := checkSupported(spec); err != nil {
		return nil, err
	}
	digest, err := digestOf(spec)
	if err != nil {
		return nil, err
	}
	record := &Record{
		SandboxID:      g.newID(),
		OrganizationID: caller.OrganizationID,
		UserID:         caller.UserID,
		RequestID:      req.GetRequestId(),
		RequestDigest:  digest,
		Spec:           spec,
	}
	earlier, err := g.earlier(ctx, record)
	if err != nil || earlier != nil {
		return earlier, err
	}
	place, err := g.place(ctx, record)
	if err != nil {
		return nil, err
	}
	now := g.clock.Now()
	record.RunnerID = place.runner.RunnerID
	record.CreateTime = now
	record.Status = initialStatus(spec, place, now)
	sb, err := g.insert(ctx, record)
	if err != nil || sb == nil {
		g.registry.runner(place.runner.RunnerKey).release(record.SandboxID)
		if err != nil {
			return nil, err
		}
		// The same request has been faster.
		return g.earlier(ctx, record)
	}
	g.startCreation(sb)
	wait, cancel := g.withDeadline(ctx, now.Add(creationWait))
	defer cancel()
	// What the sandbox is by then is the answer, whichever it is.
	current, _ := sb.waitWhile(wait, isCreating)
	return toAPI(current), nil
}

// digestOf says whether two requests ask for the same.
func digestOf(spec *sandboxv1.SandboxSpec) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the sandbox's spec: %w", err)
	}
	sum := sha256.Sum256(data)
	return sum[:], nil
}

// earlier answers a repeated request with the sandbox that it made (trap 39),
// and with nil for a new one.
func (g *Gateway) earlier(ctx context.Context, record *Record) (*sandboxv1.Sandbox, error) {
	if record.RequestID == "" {
		return nil, nil
	}
	found, err := g.store.SandboxByRequest(ctx, record.OrganizationID, record.RequestID)
	if errors.Is(err, ErrSandboxNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for an earlier request: %w", err)
	}
	if !bytes.Equal(found.RequestDigest, record.RequestDigest) {
		var v violations
		v.add("request_id", "REUSED", "%q was used before, to create sandbox %s from another spec; use a new id",
			record.RequestID, found.SandboxID)
		return nil, v.err()
	}
	return toAPI(found), nil
}

// insert stores the sandbox and brings it into memory; nil when its request
// has made another one before.
func (g *Gateway) insert(ctx context.Context, record *Record) (*sandbox, error) {
	home := g.registry.runner(runnerKeyOf(record))
	home.attach.Lock()
	defer home.attach.Unlock()
	stored, inserted, err := g.store.InsertSandbox(ctx, record)
	if err != nil {
		return nil, fmt.Errorf("store the sandbox: %w", err)
	}
	if !inserted {
		return nil, nil
	}
	g.logger.InfoContext(ctx, "sandbox accepted", "sandbox_id", record.SandboxID, "org_id", record.OrganizationID,
		"runner_id", record.RunnerID)
	return g.registry.add(stored), nil
}

// startCreation sees to it that the sandbox leaves CREATING, whatever happens
// to the runner's connection; nothing when somebody does so already.
func (g *Gateway) startCreation(sb *sandbox) {
	if !sb.creating.CompareAndSwap(false, true) {
		return
	}
	g.background.Go(func() {
		defer sb.creating.Store(false)
		ctx, cancel := g.withDeadline(g.ctx, sb.record().CreateTime.Add(creationTimeout))
		defer cancel()
		g.create(ctx, sb)
	})
}

func (g *Gateway) create(ctx context.Context, sb *sandbox) {
	home := g.registry.runner(sb.key)
	retry := firstRetry
	for isCreating(sb.record()) {
		s, err := home.waitSession(ctx)
		if err == nil {
			err = g.createOnce(ctx, s, sb)
		}
		switch {
		case err == nil:
			return
		case g.ctx.Err() != nil:
			// The next process goes on.
			return
		case ctx.Err() != nil:
			g.fail(sb, reasonCreationOverdue)
			return
		case final(err):
			g.logger.WarnContext(ctx, "the runner has refused a sandbox", "sandbox_id", sb.id, "runner_id", sb.key.RunnerID, "error", err)
			g.fail(sb, "the runner refused the sandbox: "+messageOf(err))
			return
		}
		g.logger.WarnContext(ctx, "create a sandbox on its runner", "sandbox_id", sb.id, "runner_id", sb.key.RunnerID,
			"error", err, "retry_in", retry)
		g.pause(ctx, retry)
		retry = min(2*retry, maxRetry)
	}
}

func (g *Gateway) createOnce(ctx context.Context, s *session, sb *sandbox) error {
	record := sb.record()
	resp, err := s.client.CreateSandbox(ctx, &runnerv1.CreateSandboxRequest{
		SandboxId:      record.SandboxID,
		OrganizationId: record.OrganizationID,
		UserId:         record.UserID,
		Spec:           record.Spec,
		CreateTime:     timestamppb.New(record.CreateTime),
	})
	if err != nil {
		return err
	}
	return g.observe(ctx, sb, resp.GetSandbox())
}

// fail ends a sandbox that cannot be created. The runner may have begun, and
// reports what it has: that is then removed.
func (g *Gateway) fail(sb *sandbox, reason string) {
	if err := g.lose(g.ctx, sb, reason); err != nil {
		g.logger.ErrorContext(g.ctx, "store a failed creation", "sandbox_id", sb.id, "error", err)
		return
	}
	if s := g.registry.runner(sb.key).session(); s != nil {
		s.discard(g.ctx, sb.id, false)
	}
}

// final says whether trying again is pointless: the runner itself has refused,
// for another reason than being unable to answer now.
func final(err error) bool {
	var sent *connect.Error
	if !errors.As(err, &sent) || !connect.IsWireError(err) {
		return false
	}
	switch sent.Code() {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeAborted:
		return false
	default:
		return true
	}
}

func messageOf(err error) string {
	var sent *connect.Error
	if errors.As(err, &sent) {
		return sent.Message()
	}
	return err.Error()
}
