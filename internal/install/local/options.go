package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"k8s.io/utils/clock"

	"github.com/sandbar-project/sandbar/internal/runner"
)

// Options say how runners are installed on this host.
type Options struct {
	// Directory is where the runners' files go; absolute. Required.
	Directory string
	// ServerURL is what runners dial. Required.
	ServerURL string
	// ServerCAFile is a PEM file of the roots that runners trust; empty: the
	// system's.
	ServerCAFile string
	// Executable is started as `Executable runner serve --config FILE`; empty:
	// the running executable.
	Executable string
	// Engine is what every runner's engine is configured with. Kind, Name and
	// DataDirectory are filled in.
	Engine runner.EngineConfig
	// Capacity is how much of the machine each runner promises.
	Capacity runner.CapacityConfig
	// LogLevel of the runners' logs.
	LogLevel slog.Level
	// Preflight says why no runner can work on this host; nil: CheckHost.
	Preflight func(runner.EngineConfig) error
	// UninstallEngine takes away what a runner's engine left, given the
	// runner's configuration file; nil: runner.UninstallFromFile.
	UninstallEngine func(ctx context.Context, configPath string) error
	Logger          *slog.Logger
	// Clock: nil means the machine's.
	Clock clock.WithTicker
}

func (o Options) complete() (Options, error) {
	var wrong []error
	if !filepath.IsAbs(o.Directory) {
		wrong = append(wrong, fmt.Errorf("directory %q: expected an absolute path", o.Directory))
	}
	if o.ServerURL == "" {
		wrong = append(wrong, errors.New("server URL: required"))
	}
	if o.Logger == nil {
		wrong = append(wrong, errors.New("logger: required"))
	}
	if o.Executable == "" {
		self, err := os.Executable()
		if err != nil {
			wrong = append(wrong, fmt.Errorf("find the running executable: %w", err))
		}
		o.Executable = self
	}
	if o.Engine.GuestBinary == "" {
		o.Engine.GuestBinary = filepath.Join(filepath.Dir(o.Executable), "sandbar-guest")
	}
	if o.Preflight == nil {
		o.Preflight = CheckHost
	}
	if o.UninstallEngine == nil {
		o.UninstallEngine = runner.UninstallFromFile
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if len(wrong) > 0 {
		return o, fmt.Errorf("local installer: %w", errors.Join(wrong...))
	}
	return o, nil
}
