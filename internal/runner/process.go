package runner

import (
	"context"
	"fmt"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// RunFromFile runs a runner from its configuration file until the context
// ends or the process is sent SIGTERM or SIGINT, which it answers with nil
// and which leaves sandboxes alone. Its log goes to stderr as JSON, one event
// a line.
func RunFromFile(ctx context.Context, path string) error {
	config, err := LoadConfig(path)
	if err != nil {
		return err
	}
	return openEngine(ctx, config.Engine)
}

// UninstallFromFile takes away what the runner's engine put on the machine
// beside sandboxes and images. It is refused while a sandbox is left, and
// needs no server.
func UninstallFromFile(ctx context.Context, path string) error {
	config, err := LoadConfig(path)
	if err != nil {
		return err
	}
	return openEngine(ctx, config.Engine)
}

func openEngine(_ context.Context, config EngineConfig) error {
	return fmt.Errorf("engine %q is not built in yet: %w", config.Kind, engine.ErrRuntimeUnavailable)
}
