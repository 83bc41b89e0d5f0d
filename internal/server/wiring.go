package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"k8s.io/utils/clock"

	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/install/local"
	"github.com/sandbar-project/sandbar/internal/runner"
	"github.com/sandbar-project/sandbar/internal/store/postgres"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore"
)

// Store is where a server keeps everything.
type Store interface {
	audit.Store
	auth.Store
	auth.OrganizationStore
	fleet.Store
	gateway.Store
	// Ready answers nil when the store can be read.
	Ready(context.Context) error
	// Import fills an empty store with what an export has written.
	Import(ctx context.Context, from io.Reader, accept func(sqlstore.Header) error) (rows int64, err error)
	io.Closer
}

// openStore opens PostgreSQL where a URL says so, and the embedded database
// otherwise.
func openStore(ctx context.Context, cfg Config) (Store, error) {
	if cfg.DatabaseURL != "" {
		store, err := postgres.Open(ctx, cfg.DatabaseURL, cfg.Logger)
		if err != nil {
			return nil, err
		}
		return store, nil
	}
	store, err := sqlite.Open(ctx, filepath.Join(cfg.DataDir, databaseFile), cfg.Logger)
	if err != nil {
		return nil, err
	}
	return store, nil
}

func newGateway(cfg Config, store Store, registry *fleet.Registry) Gateway {
	return gateway.New(gateway.Config{
		Store:   store,
		Runners: registry,
		Clock:   clock.RealClock{},
		IDs:     uuid.NewString,
		Logger:  cfg.Logger,
	})
}

func newLocalInstaller(cfg Config, serverURL string) (Installer, error) {
	mirrors, err := registryMirrors(cfg.Local.RegistryMirrors)
	if err != nil {
		return nil, err
	}
	directory, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("find the data directory: %w", err)
	}
	return local.New(local.Options{
		Directory:    directory,
		ServerURL:    serverURL,
		ServerCAFile: cfg.Local.ServerCAFile,
		Executable:   cfg.Local.Executable,
		Engine: runner.EngineConfig{
			Runtime:         cfg.Local.Runtime,
			GuestBinary:     cfg.Local.GuestExecutable,
			RegistryMirrors: mirrors,
		},
		Capacity: runner.CapacityConfig{
			OvercommitCPU:    cfg.Local.OvercommitCPU,
			OvercommitMemory: cfg.Local.OvercommitMemory,
			DiskReserve:      cfg.Local.DiskReserve,
		},
		Logger: cfg.Logger,
	})
}

// registryMirrors reads docker.io=http://127.0.0.1:5000, which may come more
// than once for a registry.
func registryMirrors(texts []string) (map[string][]string, error) {
	mirrors := map[string][]string{}
	var wrong []error
	for _, text := range texts {
		registry, base, found := strings.Cut(text, "=")
		parsed, err := url.Parse(base)
		if !found || registry == "" || err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			wrong = append(wrong, fmt.Errorf("registry mirror %q is not of the form docker.io=http://127.0.0.1:5000", text))
			continue
		}
		if parsed.User != nil {
			wrong = append(wrong, fmt.Errorf("registry mirror of %s: a user or password on the command line can be read by every process of this machine; a mirror must need none", registry))
			continue
		}
		mirrors[registry] = append(mirrors[registry], base)
	}
	return mirrors, errors.Join(wrong...)
}
