// Package postgrestest gives tests a PostgreSQL of their own: a server in a
// temporary directory that listens on a unix socket only, and ends with the
// test.
package postgrestest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "postgres"
	// nobody runs the server where tests are root, which PostgreSQL refuses to
	// be.
	nobody = 65534
)

// Server is one PostgreSQL.
type Server struct {
	programs  string
	directory string
	process   *exec.Cmd
	// drained is done when nobody writes to the server's log any more: when the
	// last of its processes has ended.
	drained   sync.WaitGroup
	databases atomic.Int64
}

// Start makes a server, and skips the test where PostgreSQL is not installed.
func Start(t *testing.T) *Server {
	t.Helper()
	programs, err := findPrograms()
	if err != nil {
		t.Skip(err)
	}
	// Not t.TempDir: a unix socket's path has at most 107 bytes, and the server's
	// user has to get there.
	directory, err := os.MkdirTemp("", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	if os.Geteuid() == 0 {
		if err := os.Chown(directory, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{programs: programs, directory: directory}
	initdb := s.command("initdb", "--pgdata", s.data(), "--username", superuser, "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	s.Run(t)
	t.Cleanup(func() { s.end(t, syscall.SIGQUIT) })
	return s
}

// findPrograms finds where PostgreSQL's programs are: in the PATH, or where
// Debian's packages put each version's.
func findPrograms() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return "", errors.Join(errors.New("PostgreSQL is not installed (Debian: apt-get install postgresql)"), err)
	}
	return filepath.Dir(slices.Max(found)), nil
}

func (s *Server) data() string { return filepath.Join(s.directory, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), filepath.Join(s.programs, name), args...)
	cmd.Dir = s.directory
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// Run starts the server, and returns when it takes connections.
func (s *Server) Run(t *testing.T) {
	t.Helper()
	for {
		said, ready := s.start(t)
		if ready {
			return
		}
		s.end(t, syscall.SIGKILL)
		// The last processes of a server that was killed are still ending.
		if !strings.Contains(said, "shared memory block") && !strings.Contains(said, "lock file") {
			t.Fatalf("PostgreSQL does not start:\n%s", said)
		}
	}
}

// start answers with what the server said until it was ready or had ended.
func (s *Server) start(t *testing.T) (said string, ready bool) {
	t.Helper()
	s.process = s.command("postgres", "-D", s.data(), "-k", s.directory, "-c", "listen_addresses=",
		// The machine does not go down, only the server: the kernel keeps what
		// was written.
		"-c", "fsync=off")
	log, err := s.process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "ready to accept connections") {
			s.drained.Go(func() { _, _ = io.Copy(io.Discard, log) })
			return text.String(), true
		}
	}
	return text.String(), false
}

// Kill ends the server as the end of its machine would.
func (s *Server) Kill(t *testing.T) { s.end(t, syscall.SIGKILL) }

func (s *Server) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if s.process == nil {
		return
	}
	if err := s.process.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	s.drained.Wait()
	// It was told to end: how it did says nothing.
	_ = s.process.Wait()
	s.process = nil
}

func (s *Server) url(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.User(superuser), Path: "/" + database,
		RawQuery: url.Values{"host": {s.directory}, "sslmode": {"disable"}}.Encode(),
	}).String()
}

// Database makes an empty database, and answers with its URL.
func (s *Server) Database(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.databases.Add(1))
	conn, err := pgx.Connect(t.Context(), s.url(superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return s.url(name)
}
