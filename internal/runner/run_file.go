package runner

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
	"github.com/sandbar-project/sandbar/internal/engine/oci"
)

// RunFromFile runs a runner from its configuration file until the context
// ends or the process is sent SIGTERM or SIGINT, which it answers with nil
// and which leaves sandboxes alone. Its log goes to stderr as JSON, one event
// a line.
func RunFromFile(ctx context.Context, path string) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	file, err := LoadConfig(path)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: file.LogLevel}))
	return withEngine(ctx, file, logger, func(e engine.Engine) error {
		config, err := file.config(e, logger)
		if err != nil {
			return err
		}
		return Run(ctx, config)
	})
}

// UninstallFromFile takes away what the runner's engine put on the machine
// beside sandboxes and images. It is refused while a sandbox is left, and
// needs neither a server nor a runtime.
func UninstallFromFile(ctx context.Context, path string) error {
	file, err := LoadConfig(path)
	if err != nil {
		return err
	}
	config, err := file.Engine.config(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: file.LogLevel})))
	if err != nil {
		return err
	}
	return oci.Uninstall(ctx, config)
}

// withEngine opens the engine for the time of a call.
func withEngine(ctx context.Context, file *FileConfig, logger *slog.Logger, use func(engine.Engine) error) error {
	config, err := file.Engine.config(logger)
	if err != nil {
		return err
	}
	e, err := oci.New(ctx, config)
	if err != nil {
		return fmt.Errorf("open the engine: %w", err)
	}
	return errors.Join(use(e), e.Close())
}

func (c EngineConfig) config(logger *slog.Logger) (oci.Config, error) {
	guest, err := c.guestPath()
	if err != nil {
		return oci.Config{}, err
	}
	return oci.Config{
		DataDir:            c.DataDirectory,
		Name:               c.Name,
		GuestPath:          guest,
		Runtime:            c.Runtime,
		RuntimePath:        c.RuntimePath,
		SandboxSubnet:      c.SandboxSubnet,
		InternalPrefixes:   c.InternalPrefixes,
		Resolvers:          c.Resolvers,
		Mirrors:            c.RegistryMirrors,
		InsecureRegistries: c.InsecureRegistries,
		Logger:             logger,
	}, nil
}

// guestPath is where sandbar-guest is.
func (c EngineConfig) guestPath() (string, error) {
	if c.GuestBinary != "" {
		return c.GuestBinary, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find sandbar-guest: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "sandbar-guest"), nil
}

// config is what Run needs, from what the file says.
func (c *FileConfig) config(e engine.Engine, logger *slog.Logger) (Config, error) {
	trust, err := c.trust()
	if err != nil {
		return Config{}, err
	}
	return Config{
		ServerURL:           c.ServerURL,
		TLS:                 trust,
		EnrollmentTokenFile: c.EnrollmentTokenFile,
		CredentialFile:      c.CredentialFile,
		StateDirectory:      c.StateDirectory,
		Engine:              e,
		Version:             c.Version,
		NotApplicable:       c.NotApplicable,
		Limits: Limits{
			CPUMillis:        c.Capacity.CPUMillis,
			MemoryBytes:      c.Capacity.MemoryBytes,
			OvercommitCPU:    c.Capacity.OvercommitCPU,
			OvercommitMemory: c.Capacity.OvercommitMemory,
			DiskReserve:      c.Capacity.DiskReserve,
			MaxSandboxes:     c.Capacity.MaxSandboxes,
		},
		Logger: logger,
	}, nil
}

// trust is nil when the system's roots do.
func (c *FileConfig) trust() (*tls.Config, error) {
	if c.ServerCAFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.ServerCAFile)
	if err != nil {
		return nil, fmt.Errorf("read the server's CA file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("server CA file %s holds no PEM certificate", c.ServerCAFile)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
