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
	data, err := json.Marshal(c)
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
	const firstPause, maxPause = 500 * time.Millisecond, 30 * time.Second
	pause := firstPause
	for ctx.Err() == nil {
		c, ok := r.enrollment.kept()
		if !ok {
			var err error
			if c, err = r.enrollment.enroll(ctx); err != nil {
				if ctx.Err() != nil {
					break
				}
				wait := pause - time.Duration(rand.Float64()*float64(pause)/2)
				pause = min(2*pause, maxPause)
				r.config.Logger.WarnContext(ctx, "the runner could not enrol; trying again", "error", err, "retry_in", wait)
				if !r.sleep(ctx, wait) {
					break
				}
				continue
			}
			r.config.Logger.InfoContext(ctx, "enrolled", "runner_id", c.RunnerID, "org_id", c.OrganizationID, "revision", c.Revision)
		}
		r.id.Store(&c.identity)
		err := r.session(ctx, c.Secret)
		if !errors.Is(err, tunnel.ErrUnauthorized) {
			if err != nil {
				return err
			}
			pause = firstPause
			continue
		}
		r.config.Logger.WarnContext(ctx, "the server does not know the runner's credential any more; enrolling again", "runner_id", c.RunnerID)
		if err := r.enrollment.discard(); err != nil {
			return err
		}
		// A server that refuses what it has just handed out is not hurried.
		if !r.sleep(ctx, pause) {
			break
		}
		pause = min(2*pause, maxPause)
	}
	return nil
}
