package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
)

const image = "busybox:1"

// system is a `sandbar dev` of the benchmark's own, with a runner that is
// ready.
type system struct {
	directory string
	registry  *httptest.Server
	dev       *exec.Cmd
	sandboxes sandboxv1connect.SandboxServiceClient
	// output reads what dev prints, until it ends.
	output sync.WaitGroup

	mu   sync.Mutex
	live map[string]struct{}
}

func startSystem(ctx context.Context, o options) (_ *system, err error) {
	s := &system{live: map[string]struct{}{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.directory, err = os.MkdirTemp("", "sandbar-bench-"); err != nil {
		return nil, err
	}
	s.registry = httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	if err := s.pushImage(ctx); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	if err := s.startDev(ctx, o, address); err != nil {
		return nil, err
	}
	env, err := readEnv(filepath.Join(s.directory, "data", "env"))
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{Protocols: cleartextHTTP2()}}
	auth := connect.WithInterceptors(bearer(env["COREWEAVE_API_TOKEN"]))
	base := "http://" + address
	s.sandboxes = sandboxv1connect.NewSandboxServiceClient(client, base, connect.WithGRPC(), auth)
	return s, s.makeRunner(ctx, sandboxv1connect.NewRunnerManagementServiceClient(client, base, auth), env)
}

// pushImage puts the floor's own file system into the registry.
func (s *system) pushImage(ctx context.Context) error {
	rootfs := filepath.Join(s.directory, "rootfs")
	if err := makeRootFS(rootfs); err != nil {
		return err
	}
	built, err := imageOf(rootfs)
	if err != nil {
		return err
	}
	host := strings.TrimPrefix(s.registry.URL, "http://")
	reference, err := name.ParseReference(host+"/library/"+image, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(reference, built, remote.WithContext(ctx))
}

// startDev returns when dev is ready. A signal from the terminal is for this
// process alone, which then stops dev.
func (s *system) startDev(ctx context.Context, o options, address string) error {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	dev := exec.Command(filepath.Join(bin, "sandbar"), "dev", "--data-dir", filepath.Join(s.directory, "data"),
		"--listen", address, "--runtime", o.runtime, "--registry-mirror", "docker.io="+s.registry.URL)
	dev.Stderr = os.Stderr
	dev.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := dev.StdoutPipe()
	if err != nil {
		return err
	}
	if err := dev.Start(); err != nil {
		return fmt.Errorf("start sandbar dev (run `make build` first): %w", err)
	}
	s.dev = dev
	ready, ended := make(chan struct{}), make(chan struct{})
	s.output.Go(func() {
		defer close(ended)
		once := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				once()
			}
		}
	})
	select {
	case <-ready:
		return nil
	case <-ended:
		return errors.New("sandbar dev ended before it was ready")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// makeRunner declares a runner and waits until it takes sandboxes.
func (s *system) makeRunner(ctx context.Context, runners sandboxv1connect.RunnerManagementServiceClient, env map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	runner, err := runners.CreateManagedRunner(ctx, &sandboxv1.CreateManagedRunnerRequest{ManagedRunner: &sandboxv1.ManagedRunner{
		Identity: &sandboxv1.RunnerIdentity{RunnerId: "bench", Zone: env["TF_VAR_zone"], ClusterId: env["TF_VAR_cluster_id"]},
		Policy:   &sandboxv1.Policy{},
	}})
	for ; err == nil; runner, err = runners.GetManagedRunner(ctx, &sandboxv1.GetManagedRunnerRequest{RunnerId: "bench"}) {
		if runner.GetInstallStatus() == sandboxv1.RunnerInstallStatus_RUNNER_INSTALL_STATUS_READY &&
			runner.GetConnectionStatus() == sandboxv1.RunnerConnectionStatus_RUNNER_CONNECTION_STATUS_CONNECTED {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the runner did not become ready: %v", runner.GetInstallError())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return err
}

func (s *system) stop() error {
	if s.dev != nil {
		err := s.dev.Process.Signal(os.Interrupt)
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		s.output.Wait()
		if err := errors.Join(err, s.dev.Wait()); err != nil {
			// What still runs is mounted below the directory.
			return fmt.Errorf("stop sandbar dev, which leaves %s: %w", s.directory, err)
		}
	}
	if s.registry != nil {
		s.registry.Close()
	}
	if s.directory == "" {
		return nil
	}
	return os.RemoveAll(s.directory)
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func readEnv(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok {
			env[key] = strings.Trim(value, `'"`)
		}
	}
	return env, nil
}
