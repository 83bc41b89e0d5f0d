// Package engine is what a runner needs from a place that runs containers.
//
// An engine knows sandboxes by id and knows nothing of tenants, policies or
// the API: it is given resolved numbers. It owns everything it makes for a
// sandbox (root file system, network, cgroup, processes) and must be able to
// find it again after it was killed at any instant, so that nothing outlives
// its owner. enginetest holds the behaviour that every engine shows.
//
// It must not import the gateway, the API or the control plane.
package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Errors that every engine answers with, wrapped; test with errors.Is.
var (
	// ErrNotFound: the engine has no sandbox or image of that name.
	ErrNotFound = errors.New("not found")
	// ErrExists: a sandbox of that id exists already.
	ErrExists = errors.New("already exists")
	// ErrImageNotFound: the registry has no such image, or refuses to say.
	ErrImageNotFound = errors.New("image not found")
	// ErrImageUnauthorized: the registry wants other credentials.
	ErrImageUnauthorized = errors.New("not authorized to pull the image")
	// ErrRegistryUnavailable: the registry does not answer.
	ErrRegistryUnavailable = errors.New("registry unavailable")
	// ErrImageInvalid: the image cannot be used here: wrong platform, broken
	// layers, or a reference that does not parse.
	ErrImageInvalid = errors.New("image cannot be used")
	// ErrNoSpace: the disk is full.
	ErrNoSpace = errors.New("no space left on the device")
	// ErrRuntimeUnavailable: no container runtime, or one that cannot work on
	// this machine.
	ErrRuntimeUnavailable = errors.New("container runtime unavailable")
	// ErrNotRunning: the sandbox exists, but its guest does not answer.
	ErrNotRunning = errors.New("sandbox is not running")
)

// Engine runs sandboxes. All methods are safe for concurrent use.
type Engine interface {
	// Info describes the engine and the machine it runs on.
	Info(ctx context.Context) (Info, error)

	// PullImage makes an image available and says what it is. With
	// PullIfNotPresent an image that is there already costs no request. When it
	// is the reference or a registry's answer that is wrong, the error is a
	// PullError.
	// progress may be nil; it is called from one goroutine at a time.
	PullImage(ctx context.Context, req PullRequest, progress func(PullProgress)) (Image, error)
	// Images lists the images that are available, newest first.
	Images(ctx context.Context) ([]Image, error)
	// PruneImages removes the images that no sandbox uses and returns them.
	PruneImages(ctx context.Context) ([]Image, error)

	// Create makes a sandbox whose guest is PID 1 and answers Dial. The
	// workload is not started: that is the guest's part. When Create fails or
	// its context ends, nothing of the sandbox is left.
	Create(ctx context.Context, spec Spec) error
	// Dial opens a connection to the sandbox's guest. It answers ErrNotRunning
	// once the guest has gone.
	Dial(ctx context.Context, id string) (net.Conn, error)
	// Wait returns when the guest has gone, for whatever reason, and says what
	// the kernel knows of it.
	Wait(ctx context.Context, id string) (Exit, error)
	// Usage measures a running sandbox.
	Usage(ctx context.Context, id string) (Usage, error)
	// Disk measures the file system that images and sandboxes are written to.
	Disk(ctx context.Context) (Disk, error)
	// DiskUsage measures what a sandbox alone holds on that file system. It looks
	// at each of its files, so it is for when the answer matters.
	DiskUsage(ctx context.Context, id string) (DiskUsage, error)
	// Remove ends a sandbox and takes away everything the engine made for it.
	// It works from every state, including half made, and succeeds for an id
	// that does not exist.
	Remove(ctx context.Context, id string) error
	// List returns every sandbox of which anything is left on this machine,
	// including what an earlier process of this engine left half made or half
	// removed (State StateBroken).
	List(ctx context.Context) ([]Sandbox, error)

	// Close releases what the engine holds in this process. Sandboxes go on.
	Close() error
	// Uninstall takes away what the engine put on the machine beside sandboxes
	// and images (tables, parent cgroups, settings). It is refused while a
	// sandbox is left.
	Uninstall(ctx context.Context) error
}

// Info describes an engine.
type Info struct {
	// Runtime is the name of what runs containers, for example "runsc".
	Runtime string
	// RuntimeVersion is as the runtime says it.
	RuntimeVersion string
	// Architecture is in Go's spelling, for example "amd64".
	Architecture string
	// CPUMillis and MemoryBytes are what sandboxes may share.
	CPUMillis   int64
	MemoryBytes int64
	GPUCount    int64
}

// PullPolicy says when a registry is asked.
type PullPolicy int

// The pull policies.
const (
	// PullIfNotPresent asks only for what is not there.
	PullIfNotPresent PullPolicy = iota
	// PullAlways asks each time, which also checks the credentials again.
	PullAlways
)

// PullRequest names an image and how to get it.
type PullRequest struct {
	// Reference as users write it: "python:3.11", "ghcr.io/a/b@sha256:…".
	Reference string
	Policy    PullPolicy
	// Username and Password are used for this pull only, when not empty.
	Username string
	Password string
	// KeepFreeBytes ends the pull with ErrNoSpace when less than this would be
	// free on the disk.
	KeepFreeBytes int64
}

// PullProgress is how far a pull has come; TotalBytes is 0 while unknown.
type PullProgress struct {
	CompleteBytes int64
	TotalBytes    int64
}

// Image is an image that is available.
type Image struct {
	// Digest is of the platform's manifest: "sha256:…".
	Digest    string
	SizeBytes int64
	PullTime  time.Time
	Config    ImageConfig
	// References are what it was pulled as, and SandboxCount is how many
	// sandboxes use it. PullImage leaves them out: it is part of every creation,
	// and would have to look at every image and sandbox there is.
	References   []string
	SandboxCount int
}

// ImageConfig is the part of the image's configuration that a sandbox uses.
type ImageConfig struct {
	Entrypoint []string
	Cmd        []string
	// Env is NAME=value.
	Env        []string
	WorkingDir string
	User       string
}

// Spec is a resolved sandbox.
type Spec struct {
	// ID is 1 to 63 characters of [a-z0-9-]; all ids have one length, because
	// some runtimes match ids by prefix.
	ID string
	// ImageDigest names an image that PullImage has returned.
	ImageDigest string
	Hostname    string
	Resources   Resources
	Security    Security
	Network     Network
	// Labels are kept with the sandbox and returned by List, for the owner's
	// own use.
	Labels map[string]string
}

// Resources are limits on all processes of a sandbox together.
type Resources struct {
	// CPURequestMillis weighs the sandbox against others.
	CPURequestMillis int64
	// CPULimitMillis caps it; 0: no cap.
	CPULimitMillis int64
	// MemoryLimitBytes caps it; 0: no cap.
	MemoryLimitBytes int64
	// PidsLimit caps processes and threads; 0: the engine's default.
	PidsLimit int64
}

// Security is what a sandbox may do beyond, or less than, the default.
type Security struct {
	CapabilitiesAdd        []string
	CapabilitiesDrop       []string
	ReadOnlyRootFilesystem bool
	// SeccompUnconfined runs without the default filter.
	SeccompUnconfined bool
}

// Network is what a sandbox may reach. The zero value reaches nothing.
type Network struct {
	// DNS lets the sandbox ask the engine's resolvers.
	DNS    bool
	Egress []EgressRule
}

// EgressRule allows one destination; rules add up and have no order.
type EgressRule struct {
	// Any allows every address but the platform's own (the engine knows which
	// those are); otherwise Prefix says what is allowed. A prefix means
	// link-local, loopback and multicast addresses only when it lies inside one
	// of these networks, and the machine's own addresses never.
	Any    bool
	Prefix netip.Prefix
	// Except is taken out of this rule.
	Except []netip.Prefix
	// Ports: empty allows every port and protocol.
	Ports []PortRange
}

// PortRange is a range of ports of one protocol.
type PortRange struct {
	// Protocol is "TCP", "UDP" or "SCTP".
	Protocol string
	// First and Last are inclusive.
	First, Last uint16
}

// State is how a sandbox stands.
type State int

// The states.
const (
	// StateRunning: the guest is alive.
	StateRunning State = iota + 1
	// StateExited: the guest has gone; Remove is due.
	StateExited
	// StateBroken: half made or half removed; Remove is due.
	StateBroken
)

// Sandbox is what an engine knows of one of its sandboxes.
type Sandbox struct {
	ID     string
	State  State
	Labels map[string]string
	// IP is the sandbox's address on the engine's own network, if it has one.
	IP netip.Addr
}

// Exit is how a guest ended.
type Exit struct {
	Time time.Time
	// OOMKilled: the kernel killed something in the sandbox for want of memory.
	OOMKilled bool
}

// Usage is a measurement of a running sandbox.
type Usage struct {
	// CPUNanos is the time used since the start.
	CPUNanos    int64
	MemoryBytes int64
	Pids        int64
	// OOMKills counts processes killed for want of memory.
	OOMKills int64
}

// Disk is a file system.
type Disk struct {
	TotalBytes, FreeBytes int64
	// TotalFiles and FreeFiles are 0 where their number is not bounded.
	TotalFiles, FreeFiles int64
}

// DiskUsage is what a sandbox has written and not removed, files included that
// have no name any more and are still open.
type DiskUsage struct {
	Bytes int64
	Files int64
}
