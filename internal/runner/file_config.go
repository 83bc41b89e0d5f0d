package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
)

// FileConfig is the JSON file that `sandbar runner serve --config FILE` reads.
// It holds no secret. All paths are absolute.
type FileConfig struct {
	// ServerURL is the server's base URL, for example "http://127.0.0.1:8080".
	ServerURL string `json:"server_url"`
	// ServerCAFile is a PEM file of the roots to trust instead of the
	// system's.
	ServerCAFile string `json:"server_ca_file,omitempty"`
	// EnrollmentTokenFile holds the enrolment token and nothing else.
	EnrollmentTokenFile string `json:"enrollment_token_file"`
	// CredentialFile is where the runner keeps its credential; it belongs to
	// this revision alone.
	CredentialFile string `json:"credential_file"`
	// StateDirectory is shared by the revisions of one runner.
	StateDirectory string `json:"state_directory"`
	// Version of the runner's binary.
	Version string       `json:"version"`
	Engine  EngineConfig `json:"engine"`
	// Capacity says what sandboxes may be promised together.
	Capacity CapacityConfig `json:"capacity,omitzero"`
	// NotApplicable names parts of the deployment that have no meaning here.
	NotApplicable []string `json:"not_applicable,omitempty"`
	// LogLevel is debug, info (the default), warn or error.
	LogLevel slog.Level `json:"log_level,omitempty"`
}

// EngineConfig says what runs the containers.
type EngineConfig struct {
	// Kind is "oci", the only one there is.
	Kind string `json:"kind"`
	// Name sets what the engine makes on the machine (tables, cgroups,
	// interfaces) apart from what others make: 1 to 40 of a-z, 0-9 and -.
	Name string `json:"name"`
	// DataDirectory holds images and root file systems.
	DataDirectory string `json:"data_directory"`
	// Runtime is the OCI runtime: runsc, crun or runc; empty: the first of
	// these that works here.
	Runtime string `json:"runtime,omitempty"`
	// RuntimePath is its binary; empty: looked up in PATH.
	RuntimePath string `json:"runtime_path,omitempty"`
	// GuestBinary is the path of sandbar-guest; empty: next to the running
	// executable.
	GuestBinary string `json:"guest_binary,omitempty"`
	// RegistryMirrors maps a registry ("docker.io") to the base URLs to ask
	// before it, in order.
	RegistryMirrors map[string][]string `json:"registry_mirrors,omitempty"`
	// InsecureRegistries ("host:port") may be spoken to without TLS; those on
	// loopback always may.
	InsecureRegistries []string `json:"insecure_registries,omitempty"`
	// InternalPrefixes are what a rule for any destination leaves out; empty:
	// private, link-local, loopback and reserved ranges.
	InternalPrefixes []netip.Prefix `json:"internal_prefixes,omitempty"`
	// Resolvers answer the sandboxes' names; empty: the machine's.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	// SandboxSubnet is where sandboxes get their addresses from; absent: the
	// engine's default.
	SandboxSubnet netip.Prefix `json:"sandbox_subnet,omitzero"`
}

// CapacityConfig says how much of the machine is promised; 0 means that a
// figure is not set.
type CapacityConfig struct {
	// CPUMillis and MemoryBytes take the place of what the machine has, and of
	// the factors.
	CPUMillis    int64 `json:"cpu_millis,omitempty"`
	MemoryBytes  int64 `json:"memory_bytes,omitempty"`
	MaxSandboxes int   `json:"max_sandboxes,omitempty"`
	// OvercommitCPU and OvercommitMemory multiply what the machine has; not
	// set: DefaultCPUFactor and DefaultMemoryFactor.
	OvercommitCPU    Factor `json:"overcommit_cpu,omitempty"`
	OvercommitMemory Factor `json:"overcommit_memory,omitempty"`
	// DiskReserve is kept free on the sandboxes' disk; not set: by its size.
	DiskReserve DiskReserve `json:"disk_reserve,omitempty"`
}

// LoadConfig reads and checks a configuration file. Unknown keys are errors,
// and everything wrong is reported at once.
func LoadConfig(path string) (*FileConfig, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read runner configuration: %w", err)
	}
	config := &FileConfig{}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(config); err != nil {
		return nil, fmt.Errorf("read runner configuration %s: %w", path, err)
	}
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("runner configuration %s: %w", path, err)
	}
	return config, nil
}

// Validate reports everything that is wrong with the configuration.
func (c *FileConfig) Validate() error {
	var wrong []error
	server, err := url.Parse(c.ServerURL)
	if err != nil || (server.Scheme != "http" && server.Scheme != "https") || server.Host == "" {
		wrong = append(wrong, fmt.Errorf("server_url: %q is not an http or https URL with a host", c.ServerURL))
	}
	paths := []struct {
		key, value string
		required   bool
	}{
		{"server_ca_file", c.ServerCAFile, false},
		{"enrollment_token_file", c.EnrollmentTokenFile, true},
		{"credential_file", c.CredentialFile, true},
		{"state_directory", c.StateDirectory, true},
		{"engine.data_directory", c.Engine.DataDirectory, true},
		{"engine.guest_binary", c.Engine.GuestBinary, false},
		{"engine.runtime_path", c.Engine.RuntimePath, false},
	}
	for _, p := range paths {
		switch {
		case p.value == "" && p.required:
			wrong = append(wrong, fmt.Errorf("%s: missing", p.key))
		case p.value != "" && !filepath.IsAbs(p.value):
			wrong = append(wrong, fmt.Errorf("%s: %q is not an absolute path", p.key, p.value))
		}
	}
	if c.Version == "" {
		wrong = append(wrong, errors.New("version: missing"))
	}
	if c.Engine.Kind != "oci" {
		wrong = append(wrong, fmt.Errorf("engine.kind: %q is unknown; use oci", c.Engine.Kind))
	}
	if c.Engine.Name == "" {
		wrong = append(wrong, errors.New("engine.name: missing"))
	}
	if c.Capacity.CPUMillis < 0 || c.Capacity.MemoryBytes < 0 || c.Capacity.MaxSandboxes < 0 {
		wrong = append(wrong, errors.New("capacity: figures cannot be negative"))
	}
	for _, f := range []struct {
		key    string
		factor Factor
	}{{"overcommit_cpu", c.Capacity.OvercommitCPU}, {"overcommit_memory", c.Capacity.OvercommitMemory}} {
		if err := f.factor.Validate(); f.factor != 0 && err != nil {
			wrong = append(wrong, fmt.Errorf("capacity.%s: %w", f.key, err))
		}
	}
	return errors.Join(wrong...)
}
