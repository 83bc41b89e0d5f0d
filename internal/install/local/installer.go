package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/install"
	"github.com/sandbar-project/sandbar/internal/runner"
)

// Installer keeps runner processes on this host. Use New; Close it.
type Installer struct {
	options Options
	// running are the goroutines of supervisors and those that collect
	// children.
	running sync.WaitGroup

	// mu is held across every change, so that calls for one revision do not
	// meet.
	mu          sync.Mutex
	closed      bool
	supervisors map[revisionFiles]*supervisor
	// refused is why a revision cannot be installed as it is.
	refused map[revisionFiles]*sandboxv1.InstallError
}

var _ install.Installer = (*Installer)(nil)

// New makes an installer; it does nothing until it is asked.
func New(options Options) (*Installer, error) {
	options, err := options.complete()
	if err != nil {
		return nil, err
	}
	return &Installer{
		options:     options,
		supervisors: map[revisionFiles]*supervisor{},
		refused:     map[revisionFiles]*sandboxv1.InstallError{},
	}, nil
}

// Close ends the supervision and leaves the processes. Those that were started
// by this installer are not waited for.
func (i *Installer) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	for _, s := range i.supervisors {
		s.stop()
	}
	i.supervisors = nil
	return nil
}

// Ensure writes the revision's files and keeps its process running. What makes
// that impossible on this host, or with this deployment, is told by Observe.
func (i *Installer) Ensure(_ context.Context, target install.Target) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return errors.New("the installer is closed")
	}
	of, err := i.options.runnerFiles(target.OrganizationID, target.RunnerID)
	if err != nil {
		return fmt.Errorf("install a runner: %w", err)
	}
	files := of.revision(target.Revision)
	err = i.ensure(of, files, target)
	var f *failure
	if errors.As(err, &f) {
		i.refused[files] = i.installError(f)
		return nil
	}
	if err != nil {
		return fmt.Errorf("install revision %d of runner %s: %w", target.Revision, target.RunnerID, err)
	}
	delete(i.refused, files)
	return nil
}

func (i *Installer) ensure(of runnerFiles, files revisionFiles, target install.Target) error {
	env, err := environment(target.Deployment)
	if err != nil {
		return &failure{reason: sandboxv1.InstallError_INVALID_DEPLOYMENT, message: err.Error(), hints: []string{"Correct spec.overrides.env."}}
	}
	limits, err := newCgroup(files.cgroup(), target.Deployment.GetResources())
	if err != nil {
		return &failure{reason: sandboxv1.InstallError_INVALID_DEPLOYMENT, message: err.Error(), hints: []string{"Correct spec.overrides.resources."}}
	}
	if err := (&runner.FileConfig{}).Apply(target.Deployment.GetArgs()); err != nil {
		return &failure{
			reason: sandboxv1.InstallError_INVALID_DEPLOYMENT, message: "spec.overrides.args: " + err.Error(), hints: []string{"Correct spec.overrides.args."},
		}
	}
	if err := i.options.Preflight(i.options.Engine); err != nil {
		return err
	}
	for _, dir := range []string{string(of), of.revisions(), string(files)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	supervised := i.supervisors[files]
	without := notApplicable(target.Deployment)
	if supervised == nil {
		if err := limits.make(); err != nil {
			i.options.Logger.Warn("this host does not bound the runner's resources", "runner_id", target.RunnerID, "error", err)
			limits = cgroup{}
		}
	} else {
		limits = supervised.limits
	}
	if limits.manager == nil && (target.Deployment.GetResources().GetCpuLimit() != "" || target.Deployment.GetResources().GetMemoryLimit() != "") {
		without = append(without, "resources")
	}
	if _, err := replace(files.token(), []byte(target.EnrollmentToken)); err != nil {
		return err
	}
	changed, err := i.writeConfig(of, files, target, without)
	if err != nil {
		return err
	}
	if changed && supervised != nil {
		supervised.stop()
		delete(i.supervisors, files)
		supervised = nil
	}
	if changed {
		// A process that runs has read another configuration.
		if err := files.endProcess(context.Background()); err != nil {
			return err
		}
	}
	if supervised == nil {
		i.supervisors[files] = i.supervise(files, env, limits)
	}
	return nil
}

func (i *Installer) writeConfig(of runnerFiles, files revisionFiles, target install.Target, without []string) (changed bool, err error) {
	engine := i.options.Engine
	engine.Kind, engine.Name, engine.DataDirectory = "oci", of.engineName(), of.engine()
	config := runner.FileConfig{
		ServerURL:           i.options.ServerURL,
		ServerCAFile:        i.options.ServerCAFile,
		EnrollmentTokenFile: files.token(),
		CredentialFile:      files.credential(),
		StateDirectory:      of.state(),
		Version:             target.Version,
		Engine:              engine,
		Capacity:            i.options.Capacity,
		NotApplicable:       without,
		LogLevel:            i.options.LogLevel,
	}
	if err := config.Apply(target.Deployment.GetArgs()); err != nil {
		return false, fmt.Errorf("runner arguments: %w", err)
	}
	if err := config.Validate(); err != nil {
		return false, fmt.Errorf("runner configuration: %w", err)
	}
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return false, fmt.Errorf("encode the runner's configuration: %w", err)
	}
	data = append(data, '\n')
	// Kept apart, so that the engine can be uninstalled after the last
	// revision has gone.
	if _, err := replace(of.uninstall(), data); err != nil {
		return false, err
	}
	return replace(files.config(), data)
}

// Observe says how the revision stands.
func (i *Installer) Observe(_ context.Context, organizationID, runnerID string, revision int32) (install.Observation, error) {
	of, err := i.options.runnerFiles(organizationID, runnerID)
	if err != nil {
		return install.Observation{}, fmt.Errorf("observe a runner: %w", err)
	}
	files := of.revision(revision)
	i.mu.Lock()
	refused, supervised := i.refused[files], i.supervisors[files]
	i.mu.Unlock()
	if refused != nil {
		return install.Observation{Phase: install.PhaseFailed, Error: refused}, nil
	}
	if supervised != nil {
		return supervised.observe(), nil
	}
	found, err := files.find()
	switch {
	case err == nil:
		found.release()
		return install.Observation{Phase: install.PhaseRunning}, nil
	case !errors.Is(err, errProcessGone):
		return install.Observation{}, fmt.Errorf("observe revision %d of runner %s: %w", revision, runnerID, err)
	}
	if _, err := os.Stat(string(files)); errors.Is(err, fs.ErrNotExist) {
		return install.Observation{Phase: install.PhaseAbsent}, nil
	}
	return install.Observation{Phase: install.PhaseStarting}, nil
}

// Revisions lists the revisions of which anything is left.
func (i *Installer) Revisions(_ context.Context, organizationID, runnerID string) ([]int32, error) {
	of, err := i.options.runnerFiles(organizationID, runnerID)
	if err != nil {
		return nil, err
	}
	return of.installed()
}

// Retire ends the revision's process and removes its files.
func (i *Installer) Retire(ctx context.Context, organizationID, runnerID string, revision int32) error {
	of, err := i.options.runnerFiles(organizationID, runnerID)
	if err != nil {
		return fmt.Errorf("retire a runner: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.retire(ctx, of.revision(revision)); err != nil {
		return fmt.Errorf("retire revision %d of runner %s: %w", revision, runnerID, err)
	}
	return nil
}

func (i *Installer) retire(ctx context.Context, files revisionFiles) error {
	if s := i.supervisors[files]; s != nil {
		s.stop()
		delete(i.supervisors, files)
	}
	delete(i.refused, files)
	if err := files.endProcess(ctx); err != nil {
		return err
	}
	group, err := openCgroup(files.cgroup())
	if err != nil {
		return err
	}
	return errors.Join(group.remove(), os.RemoveAll(string(files)))
}

// endProcess ends every process that serves the revision.
func (f revisionFiles) endProcess(ctx context.Context) error {
	for {
		p, err := f.find()
		if errors.Is(err, errProcessGone) {
			return nil
		}
		if err != nil {
			return err
		}
		err = p.end(ctx, endGrace)
		p.release()
		if err != nil {
			return err
		}
	}
}

// Uninstall takes every revision away, then what the engine left, then the
// runner's directory with its images.
func (i *Installer) Uninstall(ctx context.Context, organizationID, runnerID string) error {
	of, err := i.options.runnerFiles(organizationID, runnerID)
	if err != nil {
		return fmt.Errorf("uninstall a runner: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.uninstall(ctx, of); err != nil {
		return fmt.Errorf("uninstall runner %s: %w", runnerID, err)
	}
	return nil
}

func (i *Installer) uninstall(ctx context.Context, of runnerFiles) error {
	revisions, err := of.installed()
	if err != nil {
		return err
	}
	for _, revision := range revisions {
		if err := i.retire(ctx, of.revision(revision)); err != nil {
			return err
		}
	}
	for files := range i.refused {
		if filepath.Dir(string(files)) == of.revisions() {
			delete(i.refused, files)
		}
	}
	if err := i.uninstallEngine(ctx, of); err != nil {
		return err
	}
	if err := os.RemoveAll(string(of)); err != nil {
		return err
	}
	// The organization's directory goes with its last runner.
	if err := os.Remove(filepath.Dir(string(of))); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
		i.options.Logger.Debug("the organization's directory stays", "error", err)
	}
	return nil
}

// Tidy takes away what the engine put on the machine beside its images.
func (i *Installer) Tidy(ctx context.Context, organizationID, runnerID string) error {
	of, err := i.options.runnerFiles(organizationID, runnerID)
	if err != nil {
		return fmt.Errorf("tidy up after a runner: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.uninstallEngine(ctx, of); err != nil {
		return fmt.Errorf("tidy up after runner %s: %w", runnerID, err)
	}
	return nil
}

func (i *Installer) uninstallEngine(ctx context.Context, of runnerFiles) error {
	_, err := os.Stat(of.engine())
	if errors.Is(err, fs.ErrNotExist) {
		// Without a data directory no engine has ever run.
		return nil
	}
	if err != nil {
		return err
	}
	return i.options.UninstallEngine(ctx, of.uninstall())
}
