package server

import (
	"log/slog"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/runner"
)

// Config says how a server is run.
type Config struct {
	// DataDir holds the embedded database, keys and the runners' directories. It is
	// made when it is not there, for the owner only.
	DataDir string
	// DatabaseURL names a PostgreSQL database, as libpq writes it; empty: a
	// database embedded in DataDir.
	DatabaseURL string
	// Listen is the address of the one port, host:port. Port 0 takes a free
	// one.
	Listen string
	// TLSCertFile and TLSKeyFile are PEM files. Without them only loopback
	// addresses are served, unless AllowPlaintext.
	TLSCertFile string
	TLSKeyFile  string
	// AllowPlaintext permits cleartext on addresses other than loopback: for
	// servers behind a proxy that ends TLS.
	AllowPlaintext bool
	// AdvertiseURL is the base URL that runners dial; empty: made of the
	// address that is listened on.
	AdvertiseURL string
	// DefaultPolicy is stored for a runner that connects without one. nil:
	// such a runner takes no sandbox.
	DefaultPolicy *sandboxv1.Policy
	// Local configures the runners of this host.
	Local LocalConfig
	// AtShutdown says what becomes of the runners of this host.
	AtShutdown ShutdownMode
	// ShutdownGrace bounds how long requests may take to end at shutdown; 0:
	// ten seconds.
	ShutdownGrace time.Duration
	// Version of this binary.
	Version string
	Logger  *slog.Logger
}

// LocalConfig says how runners of this host work.
type LocalConfig struct {
	// Executable is the sandbar binary that runner processes are started from;
	// empty: this one.
	Executable string
	// GuestExecutable is the static sandbar-guest binary; empty: beside
	// Executable.
	GuestExecutable string
	// Runtime is runsc, crun or runc; empty: the first that works.
	Runtime string
	// ServerCAFile is a PEM file of the roots that runners trust when they dial
	// this server; empty: the system's.
	ServerCAFile string
	// RegistryMirrors are of the form docker.io=http://127.0.0.1:5000.
	RegistryMirrors []string
	// OvercommitCPU and OvercommitMemory are how many times what the machine
	// has the sandboxes of one runner may be promised; 0: the runner's defaults.
	OvercommitCPU    runner.Factor
	OvercommitMemory runner.Factor
	// DiskReserve is kept free on the sandboxes' disk; 0: by the disk's size.
	DiskReserve runner.DiskReserve
}

// ShutdownMode says what becomes of this host's runners when the server stops
// in good order. They stay declared in any case.
type ShutdownMode int

// The modes.
const (
	// LeaveRunners lets runner processes and sandboxes go on; the next start
	// finds them.
	LeaveRunners ShutdownMode = iota
	// StopRunners ends the runner processes; their sandboxes go on, and the
	// next start adopts them.
	StopRunners
	// EndSandboxes ends the sandboxes, then the runner processes.
	EndSandboxes
)
