package fleet

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbar-project/sandbar/internal/gateway"
)

const (
	// resyncInterval is how often a runner is looked at when nothing wakes its
	// worker.
	resyncInterval = 30 * time.Second
	// startingInterval is the same while something is on its way.
	startingInterval = time.Second
	// minBackoff and maxBackoff bound the wait after a step that failed.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// drainGrace is between SIGTERM and SIGKILL when a runner is deleted.
	drainGrace = 30 * time.Second
	// heartbeatLag is how far the stored time of the last heartbeat may be
	// behind.
	heartbeatLag = time.Minute
)

// deadlines say how long a phase may last before it is overdue.
var deadlines = map[Phase]time.Duration{
	PhaseProvisioning: 5 * time.Minute,
	PhaseRolling:      5 * time.Minute,
	PhaseDraining:     3 * time.Minute,
	PhaseUninstalling: 10 * time.Minute,
}

// reconciler gives every runner a worker, which makes what runs follow what
// was declared. Workers of different runners do not wait for each other.
type reconciler struct {
	cfg      Config
	registry *Registry

	mu sync.Mutex
	// workers has a channel for every worker that runs or is to be started.
	workers map[gateway.RunnerKey]chan struct{}
	// starting are those to be started; signal says that there are some.
	starting []gateway.RunnerKey
	signal   chan struct{}
}

func newReconciler(cfg Config, registry *Registry) *reconciler {
	return &reconciler{
		cfg:      cfg,
		registry: registry,
		workers:  map[gateway.RunnerKey]chan struct{}{},
		signal:   make(chan struct{}, 1),
	}
}

// wake makes the runner's worker look again soon, and starts it when there is
// none. It never waits.
func (r *reconciler) wake(key gateway.RunnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wake, running := r.workers[key]
	if !running {
		wake = make(chan struct{}, 1)
		r.workers[key] = wake
		r.starting = append(r.starting, key)
		notify(r.signal)
	}
	notify(wake)
}

func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// run works until ctx ends.
func (r *reconciler) run(ctx context.Context, gw Gateway) error {
	keys, err := r.cfg.Store.RunnerKeys(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // It was told to end before it had begun.
	}
	if err != nil {
		return fmt.Errorf("list the runners to reconcile: %w", err)
	}
	for _, key := range keys {
		r.wake(key)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		r.forgetRequests(ctx)
		return nil
	})
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-r.signal:
		}
		r.mu.Lock()
		starting := r.starting
		r.starting = nil
		for _, key := range starting {
			wake := r.workers[key]
			group.Go(func() error {
				r.work(ctx, gw, key, wake)
				return nil
			})
		}
		r.mu.Unlock()
	}
}

// work is one runner's worker.
func (r *reconciler) work(ctx context.Context, gw Gateway, key gateway.RunnerKey, wake chan struct{}) {
	w := newWorker(r.cfg, r.registry, gw, key)
	backoff := minBackoff
	for {
		select {
		case <-wake:
		default:
		}
		outcome, err := w.pass(ctx)
		if ctx.Err() != nil {
			r.stopped(key)
			return
		}
		wait := outcome.wait
		switch {
		case err != nil:
			r.cfg.Logger.WarnContext(ctx, "reconciling a runner failed; trying again",
				"org_id", key.OrganizationID, "runner_id", key.RunnerID, "error", err, "wait", backoff)
			wait, backoff = backoff, min(2*backoff, maxBackoff)
		case outcome.gone && r.retired(key, wake):
			return
		default:
			backoff = minBackoff
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			r.stopped(key)
			return
		case <-wake:
			timer.Stop()
			notify(wake) // The loop's start takes it.
		case <-timer.C:
		}
	}
}

// retired ends a worker, unless somebody has woken it since: a runner of the
// same id may be there again.
func (r *reconciler) retired(key gateway.RunnerKey, wake chan struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(wake) > 0 {
		return false
	}
	delete(r.workers, key)
	return true
}

// stopped forgets a worker that ended with the context.
func (r *reconciler) stopped(key gateway.RunnerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, key)
}

// forgetRequests drops expired request ids now and then.
func (r *reconciler) forgetRequests(ctx context.Context) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		if err := r.cfg.Store.DeleteExpiredRequests(ctx, r.cfg.Now()); err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "forgetting expired request ids failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// enrollmentToken is derived, so that it need not be stored: the same revision
// of the same runner has the same, in every process that knows the key.
func enrollmentToken(key []byte, record *RunnerRecord, revision int32) string {
	mac := hmac.New(sha256.New, key)
	// Ids hold no NUL, so that no two inputs read the same.
	fmt.Fprintf(mac, "enrollment\x00%s\x00%s\x00%s\x00%d", record.OrganizationID, record.RunnerID, record.UID, revision)
	return "sandbar-enroll-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)))
}

// ensureEnrollment makes the revision's token known to the store.
func (w *worker) ensureEnrollment(ctx context.Context, record *RunnerRecord, revision int32) (string, error) {
	token := enrollmentToken(w.cfg.EnrollmentKey, record, revision)
	hash := sha256.Sum256([]byte(token))
	_, err := w.cfg.Store.Credential(ctx, CredentialEnrollment, hash)
	if err == nil {
		return token, nil
	}
	if !errors.Is(err, ErrCredentialNotFound) {
		return "", err
	}
	return token, w.cfg.Store.PutCredential(ctx, Credential{
		RunnerIdentity: gateway.RunnerIdentity{RunnerKey: record.RunnerKey, Revision: revision},
		Kind:           CredentialEnrollment,
		Hash:           hash,
		CreateTime:     w.cfg.Now(),
	})
}
