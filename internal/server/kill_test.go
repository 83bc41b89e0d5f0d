package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/store/postgrestest"
)

// killedVariable makes the test binary a server that is killed: it names the
// data directory. killedDatabaseVariable is the URL of its database, if that is
// not embedded.
const (
	killedVariable         = "SANDBAR_TEST_KILLED_SERVER"
	killedDatabaseVariable = "SANDBAR_TEST_KILLED_SERVER_DATABASE_URL"
)

// serveUntilKilled is a whole server but for the runners' processes. It says
// on one line where it serves, and an administrator's token.
func serveUntilKilled(dir, databaseURL string) error {
	ctx := context.Background()
	srv, err := assemble(ctx, Config{
		DataDir: dir, DatabaseURL: databaseURL, Listen: "127.0.0.1:0", Version: "1.0.0", Logger: slog.New(slog.DiscardHandler),
	}, parts{
		limit:   testLimit,
		gateway: newGateway,
		local:   func(Config, string) (Installer, error) { return newFakeInstaller(), nil },
	})
	if err != nil {
		return err
	}
	organization, err := srv.EnsureOrganization(ctx, "acme")
	if err != nil {
		return err
	}
	_, secret, err := srv.Tokens().Create(ctx, auth.NewToken{OrganizationID: organization.OrganizationID, UserID: "admin", Role: auth.RoleAdmin})
	if err != nil {
		return err
	}
	serving := make(chan error, 1)
	go func() { serving <- srv.Serve(ctx) }()
	<-srv.Ready()
	fmt.Println(srv.URL(), secret.Reveal())
	return <-serving
}

// killedServer is one life of the server.
type killedServer struct {
	process  *exec.Cmd
	runners  sandboxv1connect.RunnerManagementServiceClient
	clusters adminv1connect.ClusterServiceClient
	tokens   adminv1connect.TokenServiceClient
	client   *http.Client
	url      string
}

func liveAgain(t *testing.T, dir, databaseURL string) *killedServer {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	process.Env = append(os.Environ(), killedVariable+"="+dir, killedDatabaseVariable+"="+databaseURL)
	process.Stderr = os.Stderr
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("the server does not come up: %v", err)
	}
	url, secret, _ := strings.Cut(strings.TrimSpace(line), " ")
	client := http2(t, &http.Transport{})
	options := connect.WithClientOptions(connect.WithGRPC(), bearer(auth.Secret(secret)))
	return &killedServer{
		process: process, client: client, url: url,
		runners:  sandboxv1connect.NewRunnerManagementServiceClient(client, url, options),
		clusters: adminv1connect.NewClusterServiceClient(client, url, options),
		tokens:   adminv1connect.NewTokenServiceClient(client, url, options),
	}
}

// kill is kill -9.
func (s *killedServer) kill(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// It was killed: how it ended says nothing.
	_ = s.process.Wait()
	s.client.CloseIdleConnections()
}

// acknowledged is what the server has answered.
type acknowledged struct {
	mu sync.Mutex
	// names are the runners' display names; of those in doubt the answer to an
	// update or deletion has not come.
	names   map[string]string
	etags   map[string]string
	doubted map[string]bool
	deleted map[string]bool
	// secrets are tokens, true while they are good.
	secrets map[string]bool
}

// write makes one runner after the other, with all that goes with it, until
// the server dies.
func (s *killedServer) write(t *testing.T, seen *acknowledged, prefix string, told chan<- struct{}) error {
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s-%d", prefix, i)
		cluster, err := s.clusters.CreateCluster(t.Context(), &adminv1.CreateClusterRequest{
			Cluster: &adminv1.Cluster{Name: id, Zone: "zone-a", Kind: adminv1.ClusterKind_CLUSTER_KIND_LOCAL},
		})
		if err != nil {
			return err
		}
		created, err := s.runners.CreateManagedRunner(t.Context(), &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: &sandboxv1.ManagedRunner{
			Identity:    &sandboxv1.RunnerIdentity{RunnerId: id, Zone: "zone-a", ClusterId: cluster.GetCluster().GetClusterId()},
			DisplayName: "first", Policy: &sandboxv1.Policy{},
		}})
		if err != nil {
			return err
		}
		seen.note(told, func() { seen.names[id], seen.etags[id] = "first", created.GetEtag() })

		seen.note(nil, func() { seen.doubted[id] = true })
		updated, err := s.runners.UpdateManagedRunner(t.Context(), &sandboxv1.UpdateManagedRunnerRequest{
			RunnerId: id, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name", "policy"}},
			ManagedRunner: &sandboxv1.ManagedRunner{DisplayName: "second", Etag: created.GetEtag(), Policy: &sandboxv1.Policy{DisplayName: "second"}},
		})
		if err != nil {
			return err
		}
		seen.note(told, func() { seen.names[id], seen.etags[id], seen.doubted[id] = "second", updated.GetEtag(), false })

		issued, err := s.tokens.CreateToken(t.Context(), &adminv1.CreateTokenRequest{Token: &adminv1.Token{UserId: id, Role: adminv1.Role_ROLE_SANDBOX_ADMIN}})
		if err != nil {
			return err
		}
		seen.note(told, func() { seen.secrets[issued.GetSecret()] = true })
		if i%2 == 0 {
			continue
		}
		seen.note(nil, func() { delete(seen.secrets, issued.GetSecret()); seen.doubted[id] = true })
		if _, err := s.tokens.RevokeToken(t.Context(), &adminv1.RevokeTokenRequest{TokenId: issued.GetToken().GetTokenId()}); err != nil {
			return err
		}
		seen.note(told, func() { seen.secrets[issued.GetSecret()] = false })
		if _, err := s.runners.DeleteManagedRunner(t.Context(), &sandboxv1.DeleteManagedRunnerRequest{RunnerId: id}); err != nil {
			return err
		}
		seen.note(told, func() { seen.deleted[id], seen.doubted[id] = true, false })
	}
}

func (a *acknowledged) note(told chan<- struct{}, what func()) {
	a.mu.Lock()
	what()
	a.mu.Unlock()
	if told != nil {
		told <- struct{}{}
	}
}

// check asks a server for everything.
func (a *acknowledged) check(t *testing.T, s *killedServer) {
	t.Helper()
	for id, name := range a.names {
		runner, err := s.runners.GetManagedRunner(t.Context(), &sandboxv1.GetManagedRunnerRequest{RunnerId: id})
		switch {
		case a.deleted[id]:
			if status := runner.GetInstallStatus(); apierr.ReasonOf(err) != apierr.RunnerNotFound && status != sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_DELETING {
				t.Errorf("%s was deleted, and is %s (%v)", id, status, err)
			}
		case a.doubted[id]:
			if err != nil && apierr.ReasonOf(err) != apierr.RunnerNotFound {
				t.Errorf("%s: %v", id, err)
			}
		case err != nil:
			t.Errorf("%s was acknowledged and is lost: %v", id, err)
		case runner.GetDisplayName() != name || runner.GetEtag() != a.etags[id]:
			t.Errorf("%s is %q with the etag %s; %q with %s was acknowledged", id, runner.GetDisplayName(), runner.GetEtag(), name, a.etags[id])
		}
	}
	for secret, good := range a.secrets {
		_, err := sandboxv1connect.NewRunnerManagementServiceClient(s.client, s.url, bearer(auth.Secret(secret))).
			ListManagedRunners(t.Context(), &sandboxv1.ListManagedRunnersRequest{PageSize: 1})
		if (err == nil) != good {
			t.Errorf("a token that is good (%t) is answered with %v", good, err)
		}
	}
}

func TestWhatAKilledServerHasAcknowledgedIsThere(t *testing.T) {
	t.Run("embedded database", func(t *testing.T) { killInTheMiddle(t, "") })
	t.Run("PostgreSQL", func(t *testing.T) { killInTheMiddle(t, postgrestest.Start(t).Database(t)) })
}

func killInTheMiddle(t *testing.T, databaseURL string) {
	dir := t.TempDir()
	seen := &acknowledged{
		names: map[string]string{}, etags: map[string]string{}, doubted: map[string]bool{}, deleted: map[string]bool{}, secrets: map[string]bool{},
	}
	for life, answers := range []int{1, 10, 60} {
		server := liveAgain(t, dir, databaseURL)
		seen.check(t, server)
		told := make(chan struct{})
		ended := make(chan error, 4)
		for writer := range cap(ended) {
			go func() { ended <- server.write(t, seen, fmt.Sprintf("r-%d-%d", life, writer), told) }()
		}
		writers := cap(ended)
		for answered := 0; writers > 0; {
			select {
			case <-told:
				if answered++; answered == answers {
					server.kill(t)
				}
			case err := <-ended:
				writers--
				if code := connect.CodeOf(err); answered < answers || !isGone(code) {
					t.Fatalf("a writer ended with %v after %d answers", err, answered)
				}
			}
		}
	}
	last := liveAgain(t, dir, databaseURL)
	defer last.kill(t)
	seen.check(t, last)
	if len(seen.names) < 10 || len(seen.secrets) < 5 {
		t.Errorf("only %d runners and %d tokens were acknowledged", len(seen.names), len(seen.secrets))
	}
}

// isGone says whether that is how calls end with their server.
func isGone(code connect.Code) bool {
	return code == connect.CodeUnavailable || code == connect.CodeUnknown || code == connect.CodeInternal || code == connect.CodeCanceled
}

// runKilledServer is the other process of the test, if this is it.
func runKilledServer() bool {
	dir, ordered := os.LookupEnv(killedVariable)
	if !ordered {
		return false
	}
	err := serveUntilKilled(dir, os.Getenv(killedDatabaseVariable))
	fmt.Fprintln(os.Stderr, errors.Join(errors.New("the server has ended by itself"), err))
	return true
}
