package gateway

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

const (
	// maxGraceSeconds is the platform's maximum; more is cut to it.
	maxGraceSeconds = 300
	// resumedGrace is what a deletion gets that was asked for before the
	// gateway was restarted. How much of its own was left is not stored.
	resumedGrace = 10
	// deletionSlack is how long a runner may take over a deletion beyond the
	// grace.
	deletionSlack = time.Minute

	firstRetry = 200 * time.Millisecond
	maxRetry   = 30 * time.Second
)

// Why a sandbox was ended.
const (
	reasonStopped  = "stopped at a caller's request"
	reasonPurged   = "purged at a caller's request"
	reasonDraining = "its runner is being deleted"
)

// DeleteSandbox implements SandboxService. It answers as soon as the wish is
// in the store (trap 40).
func (g *Gateway) DeleteSandbox(ctx context.Context, req *sandboxv1.DeleteSandboxRequest) (*sandboxv1.DeleteSandboxResponse, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkDelete(req); err != nil {
		return nil, err
	}
	sb, err := g.find(ctx, caller.OrganizationID, req.GetSandboxId())
	if apierr.ReasonOf(err) == apierr.SandboxNotFound && req.GetAllowMissing() {
		return &sandboxv1.DeleteSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	record, err := g.terminate(ctx, sb, min(req.GetGracePeriodSeconds(), maxGraceSeconds), reasonStopped)
	if err != nil {
		return nil, err
	}
	return &sandboxv1.DeleteSandboxResponse{Sandbox: toAPI(record)}, nil
}

func checkDelete(req *sandboxv1.DeleteSandboxRequest) error {
	if len(req.GetSnapshotVolumes()) > 0 {
		return unsupported("snapshot_volumes", "snapshots are not available yet; delete the sandbox without")
	}
	var v violations
	v.sandboxID(req.GetSandboxId())
	if req.GetGracePeriodSeconds() < 0 {
		v.add("grace_period_seconds", "OUT_OF_RANGE", "%d is negative; 0 ends the sandbox at once", req.GetGracePeriodSeconds())
	}
	return v.err()
}

// terminate writes down that the sandbox is to end and sees to it. What has
// ended already stays as it is (trap 11).
func (g *Gateway) terminate(ctx context.Context, sb *sandbox, graceSeconds int32, reason string) (*Record, error) {
	record, err := g.change(ctx, sb, func(record *Record) bool {
		if !isLive(record) || record.TerminateRequested {
			return false
		}
		record.TerminateRequested = true
		if !applyEvent(record, terminationRequested, reason, g.clock.Now()) {
			// It is ending by itself already.
			record.Status = proto.CloneOf(record.Status)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if current := g.registry.sandbox(sb.id); current != nil && isLive(record) {
		g.startDeletion(current, graceSeconds)
	}
	return record, nil
}

// deletion is the job that ends a sandbox on its runner.
type deletion struct {
	graceSeconds int32
	cancel       context.CancelFunc
}

// resumeDeletion begins the job when an earlier process of the gateway has left
// it.
func (g *Gateway) resumeDeletion(sb *sandbox) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.deletion == nil {
		g.startDeletionLocked(sb, resumedGrace)
	}
}

// startDeletion begins the job, or hurries one that leaves more time.
func (g *Gateway) startDeletion(sb *sandbox, graceSeconds int32) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.deletion != nil {
		if sb.deletion.graceSeconds <= graceSeconds {
			return
		}
		sb.deletion.cancel()
	}
	g.startDeletionLocked(sb, graceSeconds)
}

func (g *Gateway) startDeletionLocked(sb *sandbox, graceSeconds int32) {
	ctx, cancel := context.WithCancel(g.ctx)
	job := &deletion{graceSeconds: graceSeconds, cancel: cancel}
	if !g.background.Go(func() {
		defer cancel()
		g.delete(ctx, sb, graceSeconds)
	}) {
		cancel()
		return
	}
	sb.deletion = job
}

// delete asks the runner until it has removed the sandbox, across
// disconnections, and stores how it ended.
func (g *Gateway) delete(ctx context.Context, sb *sandbox, graceSeconds int32) {
	home := g.registry.runner(sb.key)
	retry := firstRetry
	for isLive(sb.record()) {
		s, err := home.waitSession(ctx)
		if err != nil {
			return
		}
		err = g.deleteOnce(ctx, s, sb, graceSeconds)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.logger.WarnContext(ctx, "delete a sandbox on its runner", "sandbox_id", sb.id, "error", err, "retry_in", retry)
		if !g.pause(ctx, retry) {
			return
		}
		retry = min(2*retry, maxRetry)
	}
}

func (g *Gateway) deleteOnce(ctx context.Context, s *session, sb *sandbox, graceSeconds int32) error {
	limit := g.clock.Now().Add(time.Duration(graceSeconds)*time.Second + deletionSlack)
	ctx, cancel := g.withDeadline(ctx, limit)
	defer cancel()
	resp, err := s.client.DeleteSandbox(ctx, &runnerv1.DeleteSandboxRequest{
		SandboxId: sb.id, GracePeriodSeconds: graceSeconds,
	})
	if err != nil {
		return err
	}
	if resp.GetSandbox() != nil {
		if err := g.observe(ctx, sb, resp.GetSandbox()); err != nil {
			return err
		}
	}
	if isLive(sb.record()) {
		// Nothing of it is left, and the runner has not said how it ended.
		return g.lose(ctx, sb, sb.record().Status.GetStateReason())
	}
	return nil
}

// PurgeSandboxes implements SandboxService: it ends the organization's live
// sandboxes, all or those with all the tags, at once.
func (g *Gateway) PurgeSandboxes(ctx context.Context, req *sandboxv1.PurgeSandboxesRequest) (*sandboxv1.PurgeSandboxesResponse, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetRequestId() != "" {
		return nil, unsupported("request_id", "purging has no request ids: it is safe to repeat; leave it out")
	}
	if (len(req.GetTags()) > 0) == req.GetPurgeAll() {
		var v violations
		v.add("purge_all", "EXACTLY_ONE", "give either tags or purge_all, and not both")
		return nil, v.err()
	}
	out := &sandboxv1.PurgeSandboxesResponse{}
	const atATime = 1000
	query := ListQuery{OrganizationID: caller.OrganizationID, Tags: req.GetTags(), Limit: atATime}
	for {
		page, err := g.store.Sandboxes(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("list sandboxes to purge: %w", err)
		}
		for _, record := range page {
			g.purge(ctx, record, req.GetDryRun(), out)
		}
		if len(page) < query.Limit {
			return out, nil
		}
		last := page[len(page)-1]
		query.AfterCreateTime, query.AfterSandboxID = last.CreateTime, last.SandboxID
	}
}

func (g *Gateway) purge(ctx context.Context, record *Record, dryRun bool, out *sandboxv1.PurgeSandboxesResponse) {
	if dryRun {
		out.PurgeCount++
		return
	}
	sb, err := g.find(ctx, record.OrganizationID, record.SandboxID)
	if err == nil {
		_, err = g.terminate(ctx, sb, 0, reasonPurged)
	}
	switch {
	case err == nil:
		out.PurgeCount++
	case apierr.ReasonOf(err) == apierr.SandboxNotFound:
		// It has ended and been forgotten meanwhile.
	case connect.CodeOf(apierr.Connect(err)) == connect.CodeUnavailable:
		out.RetryableFailedSandboxIds = append(out.RetryableFailedSandboxIds, record.SandboxID)
	default:
		g.logger.ErrorContext(ctx, "purge a sandbox", "sandbox_id", record.SandboxID, "org_id", record.OrganizationID, "error", err)
		out.FailedSandboxIds = append(out.FailedSandboxIds, record.SandboxID)
	}
}

// DrainRunner ends every sandbox of a runner: SIGTERM, then SIGKILL after
// grace (at most 300 s, rounded up to seconds). It returns when none is left,
// or with ctx's error. Nothing new should be placed there meanwhile: the
// runner is marked as deleting before.
func (g *Gateway) DrainRunner(ctx context.Context, key RunnerKey, grace time.Duration) error {
	home := g.registry.runner(key)
	seconds := int32(min((max(grace, 0)+time.Second-1)/time.Second, maxGraceSeconds))
	for {
		records, err := g.store.LiveSandboxes(ctx, key)
		if err != nil {
			return fmt.Errorf("list the runner's live sandboxes: %w", err)
		}
		if len(records) == 0 {
			return nil
		}
		for _, record := range records {
			sb, err := g.find(ctx, key.OrganizationID, record.SandboxID)
			if err == nil {
				_, err = g.terminate(ctx, sb, seconds, reasonDraining)
			}
			if err != nil && apierr.ReasonOf(err) != apierr.SandboxNotFound {
				return fmt.Errorf("drain runner %s: %w", key.RunnerID, err)
			}
		}
		if err := g.drained(ctx, home); err != nil {
			return fmt.Errorf("drain runner %s: %w", key.RunnerID, err)
		}
	}
}

// drained waits until those of the runner's sandboxes that are in memory have
// ended; if none is, until there may be some.
func (g *Gateway) drained(ctx context.Context, home *runner) error {
	live := home.live()
	for _, sb := range live {
		if _, err := sb.waitWhile(ctx, isLive); err != nil {
			return err
		}
	}
	if len(live) > 0 {
		return nil
	}
	// They come into memory when the runner connects.
	if !g.pause(ctx, watchPause) {
		return context.Cause(ctx)
	}
	return nil
}
