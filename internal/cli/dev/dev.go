// Package dev is `sandbar dev`: the whole system in one foreground command, for
// one machine and one person.
//
// Invariants: nothing is changed before every check has passed; one process
// works on a data directory at a time; what it makes is found again by the next
// start on the same directory, however it ended.
package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/runner"
	"github.com/sandbar-project/sandbar/internal/server"
)

// What the first start makes, and later ones find.
const (
	organizationName = "dev"
	clusterName      = "this-host"
	adminUser        = "dev-admin"
	sandboxUser      = "dev-user"
)

// Options are what the command line says.
type Options struct {
	DataDir          string
	Listen           string
	RegistryMirrors  []string
	Runtime          string
	Guest            string
	Zone             string
	Runner           string
	Keep             bool
	OvercommitCPU    runner.Factor
	OvercommitMemory runner.Factor
	DiskReserve      runner.DiskReserve
	LogLevel         slog.Level
}

// New makes the command.
func New(call *invocation.Invocation) *cobra.Command {
	options := &Options{}
	command := &cobra.Command{
		Use:   "dev --data-dir DIR",
		Short: "Run the whole system on this machine, in the foreground",
		Long: `Run the whole system on this machine, in the foreground: the server, and this
host registered as a cluster on which a runner can be declared. Needs root and
an OCI runtime: runsc (gVisor), crun or runc.

The first start makes an organization, a token for administrators and one for
users. DIR/env sets what Terraform, the SDKs and this program need to know;
read it into your shell:

  . DIR/env

When the system serves, it prints a line that says ready. Ctrl-C ends all that
was started: sandboxes, runner processes and networks. With --keep sandboxes go
on, and the next start on the same DIR adopts them; so it does after a crash.`,
		Example: `  sandbar dev --data-dir ~/.sandbar
  sandbar dev --data-dir ~/.sandbar --listen 127.0.0.1:9000 --runtime runc --keep
  sandbar dev --data-dir ~/.sandbar --registry-mirror docker.io=http://127.0.0.1:5000`,
		Args: invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return Run(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.DataDir, "data-dir", "", "directory for everything that is kept (required)")
	flags.StringVar(&options.Listen, "listen", "127.0.0.1:8080", "loopback address to serve on")
	flags.StringArrayVar(&options.RegistryMirrors, "registry-mirror", nil, "ask this place instead of a registry: docker.io=http://127.0.0.1:5000; may be repeated")
	flags.StringVar(&options.Runtime, "runtime", "", "OCI runtime: runsc, crun, runc (default: the first that works)")
	flags.StringVar(&options.Guest, "guest", "", "the sandbar-guest program (default: beside this one)")
	flags.StringVar(&options.Zone, "zone", "local", "zone that this host is registered in")
	flags.StringVar(&options.Runner, "runner-id", "dev-runner", "runner id that DIR/env suggests to Terraform")
	flags.BoolVar(&options.Keep, "keep", false, "leave sandboxes for the next start to adopt")
	flags.TextVar(&options.OvercommitCPU, "overcommit-cpu", runner.DefaultCPUFactor, "how many times this machine's cores sandboxes may request together")
	flags.TextVar(&options.OvercommitMemory, "overcommit-memory", runner.DefaultMemoryFactor, "the same for its memory")
	flags.TextVar(&options.DiskReserve, "disk-reserve", runner.DiskReserve(0), "how much of the disk to keep free: below it no sandbox is begun, below half of it the one that holds most is ended; 0: a twentieth, from 1Gi to 10Gi")
	flags.TextVar(&options.LogLevel, "log-level", slog.LevelWarn, "debug, info, warn or error; logs go to standard error")
	return command
}

// Run runs the system until a signal or the end of ctx.
func Run(ctx context.Context, call *invocation.Invocation, options Options) error {
	if options.DataDir == "" {
		return invocation.Usagef("--data-dir is missing: everything that is kept goes there, for example --data-dir ~/.sandbar")
	}
	directory, err := filepath.Abs(options.DataDir)
	if err != nil {
		return fmt.Errorf("find the data directory: %w", err)
	}
	options.DataDir = directory
	programs, err := check(ctx, options)
	if err != nil {
		return err
	}
	lock, err := acquire(directory)
	if err != nil {
		return err
	}
	defer lock.release()

	interrupts := iostreams.CatchInterrupts(ctx)
	defer interrupts.Stop()
	srv, err := server.New(interrupts.Work, server.Config{
		DataDir:       filepath.Join(directory, "server"),
		Listen:        options.Listen,
		DefaultPolicy: defaultPolicy(),
		Local: server.LocalConfig{
			Executable:       programs.sandbar,
			GuestExecutable:  programs.guest,
			Runtime:          programs.runtime,
			RegistryMirrors:  options.RegistryMirrors,
			OvercommitCPU:    options.OvercommitCPU,
			OvercommitMemory: options.OvercommitMemory,
			DiskReserve:      options.DiskReserve,
		},
		AtShutdown: shutdownMode(options.Keep),
		Version:    call.Version,
		Logger:     slog.New(slog.NewTextHandler(call.IO.Err, &slog.HandlerOptions{Level: options.LogLevel})),
	})
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	system := &system{call: call, options: options, server: srv}
	environment, err := system.provision(interrupts.Work)
	if err != nil {
		return errors.Join(err, srv.Close())
	}
	return system.serve(interrupts, environment)
}

func shutdownMode(keep bool) server.ShutdownMode {
	if keep {
		return server.StopRunners
	}
	return server.EndSandboxes
}

type system struct {
	call    *invocation.Invocation
	options Options
	server  *server.Server
}

// serve serves until the first signal, and then until all is stopped or the
// second one.
func (s *system) serve(interrupts *iostreams.Interrupts, environment environment) error {
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(interrupts.Work))
	defer stopServing()
	group, groupCtx := errgroup.WithContext(serveCtx)
	group.Go(func() error { return s.server.Serve(groupCtx) })
	group.Go(func() error {
		defer stopServing()
		select {
		case <-s.server.Ready():
		case <-groupCtx.Done():
			return nil
		case <-interrupts.Work.Done():
			return nil
		}
		s.greet(environment)
		select {
		case <-groupCtx.Done():
		case <-interrupts.Work.Done():
			s.sayFarewell(groupCtx, environment)
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	case <-interrupts.Cleanup.Done():
		return fmt.Errorf("not everything was stopped: start sandbar dev on %s again to adopt it or tidy it up", s.options.DataDir)
	}
	s.say("stopped")
	return nil
}

func (s *system) say(format string, arguments ...any) {
	fmt.Fprintf(s.call.IO.Out, format+"\n", arguments...)
}

func (s *system) greet(environment environment) {
	s.say("serving on %s", s.server.URL())
	s.say("sandboxes run on %s", isolation(s.options.Runtime))
	s.say("to use it from another shell: . %s", environment.path)
	s.say("ready")
}

// farewellTimeout bounds the look at what there is to stop.
const farewellTimeout = 3 * time.Second

// sayFarewell says what is about to be stopped, as far as the server still
// knows.
func (s *system) sayFarewell(ctx context.Context, environment environment) {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout)
	defer cancel()
	found, err := inventory(ctx, environment)
	if err != nil {
		s.say("stopping all that was started (what there is could not be listed: %v)", err)
		return
	}
	what := "stopping"
	if s.options.Keep {
		what = "leaving for the next start"
	}
	for _, id := range found.sandboxes {
		s.say("%s: sandbox %s", what, id)
	}
	for _, id := range found.runners {
		s.say("stopping: runner %s", id)
	}
	s.say("stopping: server (Ctrl-C again does not wait; the next start on %s tidies up)", s.options.DataDir)
}

// defaultPolicy grants the internet, and nothing that is likely to be a private
// network of this machine's.
func defaultPolicy() *sandboxv1.Policy {
	return &sandboxv1.Policy{
		DisplayName: "sandbar dev",
		Constraints: &sandboxv1.PolicyConstraints{
			Network: &sandboxv1.NetworkConstraints{
				DefaultEgress: []*sandboxv1.PolicyEgressRule{{
					Destination: &sandboxv1.PolicyEgressRule_Cidr{Cidr: &sandboxv1.CidrBlock{
						Cidr: "0.0.0.0/0",
						Except: []string{
							"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
						},
					}},
				}},
			},
		},
	}
}
