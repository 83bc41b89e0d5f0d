package runner

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// Config is what a runner is made of. Fields without a remark are required.
type Config struct {
	// ServerURL is the server's base URL: http or https, host and port.
	ServerURL string
	// TLS is for https; nil: the system's roots.
	TLS *tls.Config
	// EnrollmentTokenFile holds the token of this revision.
	EnrollmentTokenFile string
	// CredentialFile keeps what the token was traded for; it belongs to this
	// revision alone.
	CredentialFile string
	// StateDirectory holds records, output and the policy; the revisions of
	// one runner share it.
	StateDirectory string
	Engine         engine.Engine
	// Version of the runner's binary, as the release catalogue spells it.
	Version string
	// NotApplicable names parts of the deployment that have no meaning on this
	// kind of cluster; it is reported as it stands.
	NotApplicable []string
	// Limits: zero fields take their defaults.
	Limits Limits
	Logger *slog.Logger
	// Clock: nil means the machine's.
	Clock clock.WithTicker
}

// Limits bound what the runner takes on and how long it waits.
type Limits struct {
	// CPUMillis and MemoryBytes are what sandboxes may be promised together;
	// 0: what the engine says the machine has, times the factor.
	CPUMillis   int64
	MemoryBytes int64
	// OvercommitCPU and OvercommitMemory; 0: DefaultCPUFactor and
	// DefaultMemoryFactor.
	OvercommitCPU    Factor
	OvercommitMemory Factor
	// DiskReserve is kept free on the sandboxes' disk; 0: by the disk's size.
	DiskReserve DiskReserve
	// MaxSandboxes caps live sandboxes; 0: 500.
	MaxSandboxes int
	// DeadlineGrace is between SIGTERM and SIGKILL when a lifetime ends;
	// 0: 10 s.
	DeadlineGrace time.Duration
	// GuestTimeout is how long a guest may take over what should be
	// immediate, beyond any grace, before it counts as hung; 0: 10 s.
	GuestTimeout time.Duration
	// PullTimeout bounds one image pull; 0: 15 min.
	PullTimeout time.Duration
	// HeartbeatInterval: 0: 10 s.
	HeartbeatInterval time.Duration
	// LogBytes is how much of a sandbox's output is kept; 0: 16 MiB.
	LogBytes int64
}

func (l Limits) withDefaults() Limits {
	l.OvercommitCPU = orDefault(l.OvercommitCPU, DefaultCPUFactor)
	l.OvercommitMemory = orDefault(l.OvercommitMemory, DefaultMemoryFactor)
	l.MaxSandboxes = orDefault(l.MaxSandboxes, 500)
	l.DeadlineGrace = orDefault(l.DeadlineGrace, 10*time.Second)
	l.GuestTimeout = orDefault(l.GuestTimeout, 10*time.Second)
	l.PullTimeout = orDefault(l.PullTimeout, 15*time.Minute)
	l.HeartbeatInterval = orDefault(l.HeartbeatInterval, 10*time.Second)
	l.LogBytes = orDefault(l.LogBytes, 16<<20)
	return l
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func (c *Config) complete() error {
	var missing []error
	for _, field := range []struct{ name, value string }{
		{"ServerURL", c.ServerURL},
		{"EnrollmentTokenFile", c.EnrollmentTokenFile},
		{"CredentialFile", c.CredentialFile},
		{"StateDirectory", c.StateDirectory},
		{"Version", c.Version},
	} {
		if field.value == "" {
			missing = append(missing, errors.New("runner: Config."+field.name+" is empty"))
		}
	}
	if c.Engine == nil {
		missing = append(missing, errors.New("runner: Config.Engine is nil"))
	}
	if c.Logger == nil {
		missing = append(missing, errors.New("runner: Config.Logger is nil"))
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	c.Limits = c.Limits.withDefaults()
	return errors.Join(missing...)
}
