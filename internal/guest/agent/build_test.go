package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const (
	commandPackage  = "github.com/sandbar-project/sandbar/cmd/sandbar-guest"
	intruderPackage = "github.com/sandbar-project/sandbar/internal/guest/intruder"
)

// builds holds the programs that tests run in sandboxes, each built once.
var builds programs

type programs struct {
	mu    sync.Mutex
	dir   string
	built map[string]string
}

// install puts the program of a package at path.
func (p *programs) install(t testing.TB, source, path string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.buildLocked(source); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(p.built[source], path); err != nil {
		t.Fatal(err)
	}
}

func (p *programs) buildLocked(source string) error {
	if p.built[source] != "" {
		return nil
	}
	if p.built == nil {
		dir, err := os.MkdirTemp("", "guest-programs")
		if err != nil {
			return err
		}
		p.dir, p.built = dir, map[string]string{}
	}
	path := filepath.Join(p.dir, filepath.Base(source))
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	p.built[source] = path
	return nil
}

func (p *programs) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}
