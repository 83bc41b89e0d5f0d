package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// probeTimeout bounds the trial of one runtime.
const probeTimeout = 20 * time.Second

// probe starts a sandbox without an image and takes it away again: a runtime
// may be installed and still refuse to work here. It counts as a success once
// the guest has run.
func (e *Engine) probe(ctx context.Context, candidate *ociRuntime) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	id := "probe-" + uuid.NewString()
	dir := e.directory(id)
	if err := os.Mkdir(string(dir), 0o700); err != nil {
		return noSpace(err)
	}
	lock, err := tryLockDir(string(dir))
	if err != nil {
		return err
	}
	defer lock.Close()
	defer func() {
		cleanup, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer stop()
		err = errors.Join(err, e.takeAway(cleanup, id))
	}()
	spec := engine.Spec{ID: id, Hostname: "probe"}
	if err := dir.writeRecord(record{Spec: spec, CreateTime: e.config.Now()}); err != nil {
		return err
	}
	for _, path := range []string{dir.rootfs(), dir.control(), dir.export()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return noSpace(err)
		}
	}
	specs := *e.specs
	specs.runtime = candidate.runtimeKind
	if err := specs.write(dir, spec, false); err != nil {
		return err
	}
	if _, err := candidate.run(ctx, dir, id, true); err != nil {
		return fmt.Errorf("%s (%s) does not work here: %w", candidate.name, candidate.path, err)
	}
	return nil
}
