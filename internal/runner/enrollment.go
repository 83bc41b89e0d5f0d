package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"

	runnerv1 "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/tunnel"
)

// identity is what the server says that this runner is.
type identity struct {
	RunnerID       string `json:"runner_id"`
	OrganizationID string `json:"organization_id"`
	Revision       int32  `json:"revision"`
}

// credential is what an enrolment token was traded for. It is a secret.
type credential struct {
	identity
	Secret string `json:"credential"`
}

// enrollment talks to the server's EnrollmentService.
type enrollment struct {
	client         runnerv1connect.EnrollmentServiceClient
	tokenFile      string
	credentialFile string
	version        string
}

// callTimeout bounds one call to the server.
const callTimeout = 15 * time.Second

func newEnrollment(config *Config, client *http.Client) *enrollment {
	return &enrollment{
		client:         runnerv1connect.NewEnrollmentServiceClient(client, config.ServerURL),
		tokenFile:      config.EnrollmentTokenFile,
		credentialFile: config.CredentialFile,
		version:        config.Version,
	}
}

// kept is the credential on disk; ok is false when there is none that can be
// read.
func (e *enrollment) kept() (c credential, ok bool) {
	data, err := os.ReadFile(e.credentialFile)
	if err != nil || json.Unmarshal(data, &c) != nil || c.Secret == "" {
		return credential{}, false
	}
	return c, true
}

// enroll trades the token for a credential and keeps it.
func (e *enrollment) enroll(ctx context.Context) (credential, error) {
	token, err := os.ReadFile(e.tokenFile)
	if err != nil {
		return credential{}, fmt.Errorf("read the enrolment token: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := e.client.Enroll(ctx, &runnerv1.EnrollRequest{
		EnrollmentToken: string(bytes.TrimSpace(token)),
		Version:         e.version,
	})
	if err != nil {
		return credential{}, fmt.Errorf("enrol: %w", err)
	}
	c := credential{
		identity: identity{
			RunnerID:       response.GetRunnerId(),
			OrganizationID: response.GetOrganizationId(),
			Revision:       response.GetRevision(),
		},
		Secret: response.GetCredential(),
	}
	data, err := json.Marshal(c) //nolint:gosec // it goes into a file that only the owner reads
	if err != nil {
		return credential{}, fmt.Errorf("encode the credential: %w", err)
	}
	if err := writeDurably(e.credentialFile, data); err != nil {
		return credential{}, fmt.Errorf("keep the credential: %w", err)
	}
	return c, nil
}

// discard forgets a credential that was refused.
func (e *enrollment) discard() error {
	if err := os.Remove(e.credentialFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("discard the refused credential: %w", err)
	}
	return nil
}

func (e *enrollment) heartbeat(ctx context.Context, secret string, capacity *runnerv1.Capacity) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ctx, call := connect.NewClientContext(ctx)
	call.RequestHeader().Set("Authorization", "Bearer "+secret)
	_, err := e.client.Heartbeat(ctx, &runnerv1.HeartbeatRequest{Capacity: capacity})
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		return fmt.Errorf("heartbeat: %w", tunnel.ErrUnauthorized)
	}
	return err
}

// connect keeps the runner enrolled and connected until ctx ends.
func (r *runner) connect(ctx context.Context) error {
	pause := backoff{first: 500 * time.Millisecond, most: 30 * time.Second}
	for {
		c, ok := r.credential(ctx)
		if !ok {
			return nil
		}
		r.id.Store(&c.identity)
		err := r.session(ctx, c.Secret)
		if !errors.Is(err, tunnel.ErrUnauthorized) {
			return err
		}
		r.config.Logger.WarnContext(ctx, "the server does not know the runner's credential any more; enrolling again", "runner_id", c.RunnerID)
		if err := r.enrollment.discard(); err != nil {
			return err
		}
		// A server that refuses what it has just handed out is not hurried.
		if !r.sleep(ctx, pause.next()) {
			return nil
		}
	}
}

// credential is the one that is kept, or a new one as soon as the server gives
// it; ok is false when ctx ended first.
func (r *runner) credential(ctx context.Context) (c credential, ok bool) {
	if c, ok := r.enrollment.kept(); ok {
		return c, true
	}
	pause := backoff{first: 500 * time.Millisecond, most: 30 * time.Second}
	for {
		c, err := r.enrollment.enroll(ctx)
		if err == nil {
			r.config.Logger.InfoContext(ctx, "enrolled", "runner_id", c.RunnerID, "org_id", c.OrganizationID, "revision", c.Revision)
			return c, true
		}
		if ctx.Err() != nil {
			return credential{}, false
		}
		wait := pause.next()
		r.config.Logger.WarnContext(ctx, "the runner could not enrol; trying again", "error", err, "retry_in", wait)
		if !r.sleep(ctx, wait) {
			return credential{}, false
		}
	}
}

// backoff doubles pauses up to the most, each shortened by up to half at
// random so that runners do not all return together.
type backoff struct {
	first, most, current time.Duration
}

func (b *backoff) next() time.Duration {
	b.current = min(max(b.first, 2*b.current), b.most)
	return b.current - rand.N(b.current/2) //nolint:gosec // spreads load; guessing it gains nothing
}
