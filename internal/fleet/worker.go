package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/install"
)

// worker reconciles one runner. Everything it remembers can be lost: it is
// only there to save work.
type worker struct {
	cfg      Config
	registry *Registry
	gateway  Gateway
	key      gateway.RunnerKey

	// pushed is the policy that the runner was sent last.
	pushed *gateway.PolicySnapshot
	// trouble is the last thing that went wrong with the target.
	trouble *sandboxv1.InstallError
}

func newWorker(cfg Config, registry *Registry, gw Gateway, key gateway.RunnerKey) *worker {
	return &worker{cfg: cfg, registry: registry, gateway: gw, key: key}
}

// outcome is what a pass ends with.
type outcome struct {
	// gone: there is no such runner any more.
	gone bool
	// wait is how long the worker may sleep.
	wait time.Duration
}

// pass takes the runner as far as it will go now.
func (w *worker) pass(ctx context.Context) (outcome, error) {
	for {
		record, err := w.cfg.Store.Runner(ctx, w.key)
		if errors.Is(err, ErrRunnerNotFound) {
			return outcome{gone: true}, nil
		}
		if err != nil {
			return outcome{}, err
		}
		if err := w.pushPolicy(ctx, record); err != nil {
			return outcome{}, err
		}
		happened, err := w.look(ctx, record)
		if happened == "" && w.overdue(record) {
			happened = eventOverdue
		}
		if happened == "" {
			if err != nil {
				return outcome{}, err
			}
			return outcome{wait: waitIn(record.Phase)}, w.storeHeartbeat(ctx, record)
		}
		row, ok := next(record.Phase, happened)
		if !ok {
			return outcome{wait: waitIn(record.Phase)}, nil
		}
		if err := w.take(ctx, record, row); err != nil {
			return outcome{}, err
		}
	}
}

func waitIn(phase Phase) time.Duration {
	if phase == PhaseReady || phase == PhaseFailed {
		return resyncInterval
	}
	return startingInterval
}

func (w *worker) overdue(record *RunnerRecord) bool {
	limit, limited := deadlines[record.Phase]
	return limited && w.cfg.Now().Sub(record.PhaseTime) >= limit
}

// look makes the phase's own work be under way and says what happened; it is
// the empty event when nothing did.
func (w *worker) look(ctx context.Context, record *RunnerRecord) (event, error) {
	switch record.Phase {
	case PhasePending:
		return eventStarted, nil
	case PhaseProvisioning, PhaseFailed:
		return w.lookAtTarget(ctx, record)
	case PhaseRolling:
		if err := w.ensure(ctx, record, record.ActiveRevision); err != nil {
			return "", err
		}
		return w.lookAtTarget(ctx, record)
	case PhaseReady:
		return w.lookAtActive(ctx, record)
	case PhaseDraining:
		return w.drain(ctx, record)
	case PhaseUninstalling:
		return w.uninstall(ctx, record)
	case PhaseGone:
	}
	return "", nil
}

// lookAtTarget starts the target revision and says whether it serves.
func (w *worker) lookAtTarget(ctx context.Context, record *RunnerRecord) (event, error) {
	if err := w.ensure(ctx, record, record.TargetRevision); err != nil {
		w.note(sandboxv1.InstallError_INTERNAL, "the runner could not be installed", err)
		return "", err
	}
	if w.registry.serving(record.RunnerKey, record.TargetRevision) {
		return eventServing, nil
	}
	installer, err := w.installer(ctx, record)
	if err != nil {
		return "", err
	}
	observed, err := installer.Observe(ctx, record.OrganizationID, record.RunnerID, record.TargetRevision)
	if err != nil {
		w.note(sandboxv1.InstallError_CLUSTER_UNREACHABLE, "the cluster does not say how the runner is", err)
		return "", err
	}
	switch {
	case observed.Phase == install.PhaseFailed:
		w.trouble = observed.Error
		return eventRefused, nil
	case observed.Error != nil:
		w.trouble = observed.Error
	case observed.Phase == install.PhaseRunning:
		w.note(sandboxv1.InstallError_ENROLLMENT_TIMEOUT, "the runner's process runs, but it has not connected to the gateway", nil)
	}
	return "", nil
}

// lookAtActive keeps the active revision there, and takes away the others.
func (w *worker) lookAtActive(ctx context.Context, record *RunnerRecord) (event, error) {
	if err := w.ensure(ctx, record, record.ActiveRevision); err != nil {
		return "", err
	}
	if err := w.retireOthers(ctx, record); err != nil {
		return "", err
	}
	if w.registry.serving(record.RunnerKey, record.ActiveRevision) {
		w.trouble = nil
		return "", nil
	}
	installer, err := w.installer(ctx, record)
	if err != nil {
		return "", err
	}
	observed, err := installer.Observe(ctx, record.OrganizationID, record.RunnerID, record.ActiveRevision)
	if err != nil {
		return "", err
	}
	if observed.Phase == install.PhaseFailed {
		w.trouble = observed.Error
		return eventLost, nil
	}
	return "", nil
}

// ensure asks the installer for a revision.
func (w *worker) ensure(ctx context.Context, record *RunnerRecord, number int32) error {
	installer, err := w.installer(ctx, record)
	if err != nil {
		return err
	}
	revision, err := w.cfg.Store.Revision(ctx, record.RunnerKey, number)
	if err != nil {
		return err
	}
	token, err := w.ensureEnrollment(ctx, record, number)
	if err != nil {
		return err
	}
	err = installer.Ensure(ctx, install.Target{
		OrganizationID:  record.OrganizationID,
		RunnerID:        record.RunnerID,
		ClusterID:       record.ClusterID,
		Revision:        number,
		Version:         revision.Version,
		Deployment:      withGateway(revision.Deployment, w.cfg.GatewayServer),
		EnrollmentToken: token,
	})
	if err != nil {
		return fmt.Errorf("install revision %d: %w", number, err)
	}
	return nil
}

// retireOthers takes away every revision but the active one.
func (w *worker) retireOthers(ctx context.Context, record *RunnerRecord) error {
	installer, err := w.installer(ctx, record)
	if err != nil {
		return err
	}
	revisions, err := installer.Revisions(ctx, record.OrganizationID, record.RunnerID)
	if err != nil {
		return fmt.Errorf("list installed revisions: %w", err)
	}
	for _, number := range revisions {
		if number == record.ActiveRevision {
			continue
		}
		if err := installer.Retire(ctx, record.OrganizationID, record.RunnerID, number); err != nil {
			return fmt.Errorf("retire revision %d: %w", number, err)
		}
		if err := w.cfg.Store.DeleteCredentials(ctx, record.RunnerKey, number); err != nil {
			return err
		}
	}
	return nil
}

// drain ends the runner's sandboxes. A runner that never served has none.
func (w *worker) drain(ctx context.Context, record *RunnerRecord) (event, error) {
	if record.ActiveRevision == 0 && !w.registry.connected(record.RunnerKey) {
		return eventDrained, nil
	}
	if !w.registry.connected(record.RunnerKey) {
		// It may be down; it alone can end its sandboxes in good order.
		if err := w.ensure(ctx, record, record.ActiveRevision); err != nil {
			return "", err
		}
		return "", nil
	}
	left := deadlines[PhaseDraining] - w.cfg.Now().Sub(record.PhaseTime)
	ctx, cancel := context.WithTimeout(ctx, max(left, startingInterval))
	defer cancel()
	if err := w.gateway.DrainRunner(ctx, record.RunnerKey, drainGrace); err != nil {
		return "", fmt.Errorf("end the runner's sandboxes: %w", err)
	}
	return eventDrained, nil
}

func (w *worker) uninstall(ctx context.Context, record *RunnerRecord) (event, error) {
	installer, err := w.installer(ctx, record)
	if err != nil {
		return "", err
	}
	if err := installer.Uninstall(ctx, record.OrganizationID, record.RunnerID); err != nil {
		return "", fmt.Errorf("uninstall: %w", err)
	}
	return eventUninstalled, nil
}

// take writes a transition, unless the record has changed under the worker.
func (w *worker) take(ctx context.Context, seen *RunnerRecord, row transition) error {
	now := w.cfg.Now()
	forget := false
	stale := false
	record, err := w.registry.change(ctx, w.key, func(record *RunnerRecord) (*Write, error) {
		stale = record.UID != seen.UID || record.Phase != seen.Phase || record.TargetRevision != seen.TargetRevision
		if stale {
			return nil, nil
		}
		forget = apply(record, row, w.failure(row, now), now)
		if forget {
			return nil, nil
		}
		if heartbeat := w.registry.lastHeartbeat(w.key); heartbeat.After(record.LastHeartbeatTime) {
			record.LastHeartbeatTime = heartbeat
		}
		return &Write{Audit: w.audit(record, row)}, nil
	})
	if err != nil || stale {
		return err
	}
	w.cfg.Logger.InfoContext(ctx, "runner moved on", "org_id", w.key.OrganizationID, "runner_id", w.key.RunnerID,
		"from", row.from, "event", row.event, "to", row.to,
		"target_revision", record.TargetRevision, "active_revision", record.ActiveRevision)
	if !forget {
		return nil
	}
	if err := w.cfg.Store.DeleteRunner(ctx, w.key, seen.UID, *w.audit(seen, row)); err != nil {
		return err
	}
	w.registry.forget(w.key)
	return nil
}

// failure is what the API shows of why no revision serves.
func (w *worker) failure(row transition, now time.Time) *sandboxv1.InstallError {
	failure := &sandboxv1.InstallError{
		Reason:  sandboxv1.InstallError_ENROLLMENT_TIMEOUT,
		Message: fmt.Sprintf("the runner has not become ready in %s", deadlines[row.from]),
	}
	if w.trouble != nil {
		failure = proto.Clone(w.trouble).(*sandboxv1.InstallError)
	}
	if failure.OccurredAt == nil {
		failure.OccurredAt = timestamppb.New(now)
	}
	return failure
}

func (w *worker) note(reason sandboxv1.InstallError_Reason, message string, err error) {
	w.trouble = &sandboxv1.InstallError{Reason: reason, Message: message}
	if err != nil {
		w.trouble.DiagnosticDetail = err.Error()
	}
}

// audit records a transition; of a rollback and of what was left behind it
// says why.
func (w *worker) audit(record *RunnerRecord, row transition) *audit.Entry {
	detail := map[string]any{
		"event": row.event, "from": row.from, "to": row.to,
		"target_revision": record.TargetRevision, "active_revision": record.ActiveRevision,
	}
	if w.trouble != nil && (row.event == eventRefused || row.event == eventOverdue || row.event == eventLost) {
		detail["reason"], detail["message"] = w.trouble.GetReason().String(), w.trouble.GetMessage()
	}
	// Strings and numbers always encode.
	text, _ := json.Marshal(detail)
	return &audit.Entry{
		OrganizationID: record.OrganizationID,
		Time:           w.cfg.Now(),
		Action:         "Reconcile",
		Resource:       record.RunnerID,
		Detail:         string(text),
	}
}

// pushPolicy sends the policy when it is not the one that was sent last. A
// runner gets it by itself when it connects.
func (w *worker) pushPolicy(ctx context.Context, record *RunnerRecord) error {
	current := snapshot(record)
	if !w.registry.connected(w.key) || record.Phase.deleting() {
		w.pushed = nil
		return nil
	}
	if w.pushed != nil && samePolicy(*w.pushed, current) {
		return nil
	}
	if err := w.gateway.PushPolicy(ctx, w.key, current); err != nil {
		return fmt.Errorf("push the policy: %w", err)
	}
	w.pushed = &current
	return nil
}

func samePolicy(a, b gateway.PolicySnapshot) bool {
	return a.ETag == b.ETag && a.EnforceResourceLimits == b.EnforceResourceLimits && a.ImagePullPolicy == b.ImagePullPolicy
}

// storeHeartbeat writes the time of the last heartbeat when the stored one is
// far behind.
func (w *worker) storeHeartbeat(ctx context.Context, record *RunnerRecord) error {
	heartbeat := w.registry.lastHeartbeat(w.key)
	if heartbeat.Sub(record.LastHeartbeatTime) < heartbeatLag {
		return nil
	}
	_, err := w.cfg.Store.ChangeRunner(ctx, w.key, func(record *RunnerRecord) (*Write, error) {
		record.LastHeartbeatTime = heartbeat
		return &Write{}, nil
	})
	return err
}

// installer is that of the runner's kind of cluster.
func (w *worker) installer(ctx context.Context, record *RunnerRecord) (install.Installer, error) {
	cluster, err := w.cfg.Store.Cluster(ctx, record.OrganizationID, record.ClusterID)
	if err != nil {
		return nil, fmt.Errorf("find the runner's cluster: %w", err)
	}
	installer := w.cfg.Installers[cluster.Kind]
	if installer == nil {
		return nil, fmt.Errorf("no installer for clusters of kind %s", cluster.Kind)
	}
	return installer, nil
}
