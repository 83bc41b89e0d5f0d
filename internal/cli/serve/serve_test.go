package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/cli/serve"
	"github.com/sandbar-project/sandbar/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serving is a server that runs as `sandbar serve` does.
type serving struct {
	url  string
	stop func() error
}

// start serves until stop, and returns once the log says that it serves.
func start(t *testing.T, options serve.Options) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	logRead, logWrite := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := serve.Run(ctx, &invocation.Invocation{IO: iostreams.Buffers(nil, io.Discard, logWrite), Now: time.Now, Getenv: noEnvironment}, options)
		_ = logWrite.Close()
		ended <- err
	}()
	url := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(logRead)
		for lines.Scan() {
			var line struct{ Msg, URL string }
			if err := json.Unmarshal(lines.Bytes(), &line); err == nil && line.Msg == "serving" {
				url <- line.URL
			}
		}
		close(url)
	}()
	s := &serving{url: <-url}
	s.stop = func() error {
		cancel()
		err := <-ended
		for range url { // to the end of the log
		}
		return err
	}
	if s.url == "" {
		t.Fatalf("the server ended: %v", s.stop())
	}
	return s
}

func noEnvironment(string) string { return "" }

func options(t *testing.T) serve.Options {
	t.Helper()
	directory := t.TempDir()
	return serve.Options{
		Server:         server.Config{DataDir: filepath.Join(directory, "data"), Listen: "127.0.0.1:0"},
		AdminTokenFile: filepath.Join(directory, "admin.token"),
		Organization:   "default",
	}
}

func listTokens(t *testing.T, url, tokenFile string) error {
	t.Helper()
	c, err := client.New(client.Options{Endpoint: url, TokenFile: tokenFile, Getenv: func(string) string { return "" }}, client.Management)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Tokens.ListTokens(t.Context(), &adminv1.ListTokensRequest{})
	return err
}

func TestTheFirstStartMakesAnAdministratorAndTheNextKeepsIt(t *testing.T) {
	wanted := options(t)
	first := start(t, wanted)
	if err := listTokens(t, first.url, wanted.AdminTokenFile); err != nil {
		t.Errorf("the administrator's token is answered with %v", err)
	}
	if err := first.stop(); err != nil {
		t.Fatalf("the server ended with %v", err)
	}
	token, err := os.ReadFile(wanted.AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(wanted.AdminTokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file has mode %v, %v", info.Mode(), err)
	}

	second := start(t, wanted)
	if err := listTokens(t, second.url, wanted.AdminTokenFile); err != nil {
		t.Errorf("after a restart the token is answered with %v", err)
	}
	if err := second.stop(); err != nil {
		t.Fatalf("the server ended with %v", err)
	}
	if now, err := os.ReadFile(wanted.AdminTokenFile); err != nil || string(now) != string(token) {
		t.Errorf("the token was replaced, %v", err)
	}
	left, err := os.ReadDir(filepath.Dir(wanted.AdminTokenFile))
	if err != nil || len(left) != 2 {
		t.Errorf("beside the data there are %v, %v; want the token alone", left, err)
	}
}

func TestWithoutATokenFileNobodyIsMade(t *testing.T) {
	wanted := options(t)
	wanted.AdminTokenFile = ""
	s := start(t, wanted)
	if err := listTokens(t, s.url, ""); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a stranger is answered with %v", err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

func TestWhatCannotBeServedIsRefusedAndLeavesTheDirectoryFree(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*serve.Options)
		says   string
	}{
		"no data directory":           {func(o *serve.Options) { o.Server.DataDir = "" }, "--data-dir is missing"},
		"an open address without TLS": {func(o *serve.Options) { o.Server.Listen = "0.0.0.0:0" }, "refusing to serve without TLS"},
		"a token file that cannot be": {func(o *serve.Options) { o.AdminTokenFile = "/no/such/directory/token" }, "write the administrator's token"},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := options(t)
			usable := wanted
			c.change(&wanted)
			err := serve.Run(t.Context(), &invocation.Invocation{IO: iostreams.Buffers(nil, io.Discard, io.Discard), Now: time.Now, Getenv: noEnvironment}, wanted)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("Run = %v, want an error that says %q", err, c.says)
			}
			var usage *invocation.UsageError
			if errors.As(err, &usage) != (wanted.Server.DataDir == "") {
				t.Errorf("%v is a usage error: %t", err, errors.As(err, &usage))
			}
			if err := start(t, usable).stop(); err != nil {
				t.Errorf("the next server ends with %v", err)
			}
		})
	}
}

func TestARunnerNeedsItsConfiguration(t *testing.T) {
	run := func(args ...string) error {
		command := serve.NewRunner()
		command.SilenceErrors, command.SilenceUsage = true, true
		command.SetArgs(args)
		return command.ExecuteContext(t.Context())
	}
	var usage *invocation.UsageError
	if err := run(); !errors.As(err, &usage) {
		t.Errorf("without --config: %v", err)
	}
	if err := run("--config", "/no/such/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a file that is not there: %v", err)
	}
}
