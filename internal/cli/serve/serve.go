// Package serve is `sandbar serve` and `sandbar runner serve`, the processes
// that run for long, and `sandbar backup` and `sandbar restore` of what the
// server keeps.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
	"github.com/sandbar-project/sandbar/internal/runner"
	"github.com/sandbar-project/sandbar/internal/server"
)

// Options are what the command line says.
type Options struct {
	Server server.Config
	// AdminTokenFile receives the first administrator's token.
	AdminTokenFile string
	Organization   string
	LogLevel       slog.Level
}

// New makes the command.
func New(call *invocation.Invocation) *cobra.Command {
	options := &Options{}
	command := &cobra.Command{
		Use:   "serve --data-dir DIR",
		Short: "Run the server: control plane and gateway on one port",
		Long: `Run the server: control plane and gateway on one port, which speaks Connect,
gRPC, gRPC-Web, JSON and REST. Without a certificate only loopback addresses are
served, since tokens must not travel in the clear; --allow-plaintext lifts that
for a server behind a proxy that ends TLS.

With --admin-token-file the first start makes an organization and an
administrator's token and writes the token to that file; where the file exists
already, nothing is made. SIGTERM and SIGINT end the server and leave runners and sandboxes as
they are: the next start finds them.`,
		Example: `  sandbar serve --data-dir /var/lib/sandbar --listen 127.0.0.1:8080 --admin-token-file admin.token
  sandbar serve --data-dir /var/lib/sandbar --listen :8443 --tls-cert tls.crt --tls-key tls.key`,
		Args: invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return Run(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Server.DataDir, "data-dir", "", "directory for the embedded database, keys and runners (required)")
	addDatabaseFlag(flags, &options.Server.DatabaseURL)
	flags.StringVar(&options.Server.Listen, "listen", "127.0.0.1:8080", "address of the one port")
	flags.StringVar(&options.Server.TLSCertFile, "tls-cert", "", "certificate chain, in PEM")
	flags.StringVar(&options.Server.TLSKeyFile, "tls-key", "", "its private key, in PEM")
	flags.BoolVar(&options.Server.AllowPlaintext, "allow-plaintext", false, "serve without TLS on addresses other than loopback")
	flags.StringVar(&options.Server.AdvertiseURL, "advertise-url", "", "base URL that runners dial (default: made of --listen)")
	flags.StringVar(&options.AdminTokenFile, "admin-token-file", "", "write a first administrator's token here, unless the file exists")
	flags.StringVar(&options.Organization, "organization", "default", "organization that the first administrator belongs to")
	flags.StringVar(&options.Server.Local.Runtime, "runtime", "", "OCI runtime of this host's runners: runsc, crun, runc (default: the first that works)")
	flags.StringVar(&options.Server.Local.GuestExecutable, "guest", "", "the sandbar-guest program (default: beside this one)")
	flags.StringArrayVar(&options.Server.Local.RegistryMirrors, "registry-mirror", nil, "ask this place instead of a registry: docker.io=http://127.0.0.1:5000; may be repeated")
	flags.TextVar(&options.Server.Local.OvercommitCPU, "overcommit-cpu", runner.DefaultCPUFactor, "how many times this machine's cores sandboxes may request together")
	flags.TextVar(&options.Server.Local.OvercommitMemory, "overcommit-memory", runner.DefaultMemoryFactor, "the same for its memory")
	flags.TextVar(&options.Server.Local.DiskReserve, "disk-reserve", runner.DiskReserve(0), "how much of the disk to keep free: below it no sandbox is begun, below half of it the one that holds most is ended; 0: a twentieth, from 1Gi to 10Gi")
	flags.TextVar(&options.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	return command
}

// Run serves until a signal or the end of ctx.
func Run(ctx context.Context, call *invocation.Invocation, options Options) error {
	if options.Server.DataDir == "" {
		return invocation.Usagef("--data-dir is missing: the server keeps its database there")
	}
	config := options.Server
	if err := setDatabase(&config.DatabaseURL, call.Getenv); err != nil {
		return err
	}
	config.Version = call.Version
	config.Logger = slog.New(slog.NewJSONHandler(call.IO.Err, &slog.HandlerOptions{Level: options.LogLevel}))

	interrupts := iostreams.CatchInterrupts(ctx)
	defer interrupts.Stop()
	srv, err := server.New(interrupts.Work, config)
	if err != nil {
		return err
	}
	if err := bootstrap(interrupts.Work, srv, options); err != nil {
		return errors.Join(err, srv.Close())
	}
	group, groupCtx := errgroup.WithContext(interrupts.Work)
	group.Go(func() error { return srv.Serve(groupCtx) })
	group.Go(func() error {
		select {
		case <-srv.Ready():
			config.Logger.InfoContext(groupCtx, "serving", "url", srv.URL())
		case <-groupCtx.Done():
		}
		return nil
	})
	return group.Wait()
}

// databaseVariable is where a URL with a password belongs.
const databaseVariable = "SANDBAR_DATABASE_URL"

func addDatabaseFlag(flags *pflag.FlagSet, databaseURL *string) {
	flags.StringVar(databaseURL, "database-url", "",
		"PostgreSQL database, postgres://user@host/name (default: $"+databaseVariable+", else a database in --data-dir)")
}

// setDatabase refuses a password on the command line, which every process of
// the machine can read, and takes the URL from the environment where there is
// no flag.
func setDatabase(databaseURL *string, getenv func(string) string) error {
	if *databaseURL == "" {
		*databaseURL = getenv(databaseVariable)
		return nil
	}
	parsed, err := url.Parse(*databaseURL)
	if err != nil || (parsed.Scheme != "postgres" && parsed.Scheme != "postgresql") {
		return invocation.Usagef("--database-url: expected postgres://user@host:port/database")
	}
	if _, set := parsed.User.Password(); set || parsed.Query().Has("password") {
		return invocation.Usagef("--database-url: a password on the command line can be read by every process of this machine; put it into $PGPASSWORD or a file that $PGPASSFILE names, or the whole URL into $%s", databaseVariable)
	}
	return nil
}

// bootstrap makes the first administrator, since without one nobody could ask
// for anything.
func bootstrap(ctx context.Context, srv *server.Server, options Options) error {
	if options.AdminTokenFile == "" {
		return nil
	}
	if _, err := os.Stat(options.AdminTokenFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	organization, err := srv.EnsureOrganization(ctx, options.Organization)
	if err != nil {
		return fmt.Errorf("make the organization %s: %w", options.Organization, err)
	}
	_, secret, err := srv.Tokens().Create(ctx, auth.NewToken{
		OrganizationID: organization.OrganizationID, UserID: "admin", DisplayName: "first administrator", Role: auth.RoleAdmin,
	})
	if err != nil {
		return fmt.Errorf("issue the administrator's token: %w", err)
	}
	err = writeWhole(options.AdminTokenFile, func(file io.Writer) error {
		_, err := fmt.Fprintln(file, secret.Reveal())
		return err
	})
	if err != nil {
		return fmt.Errorf("write the administrator's token: %w", err)
	}
	return nil
}

// writeWhole writes a file for its owner only, as a whole or not at all: after
// a crash, half a file would stand in the way of the next attempt.
func writeWhole(path string, write func(io.Writer) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	err = errors.Join(write(file), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
