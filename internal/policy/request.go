package policy

import (
	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Defaults are the platform's own, for what neither a sandbox nor its policy
// says. A zero field means the value of PlatformDefaults.
type Defaults struct {
	// CPU and Memory are Kubernetes quantities, per container.
	CPU    string
	Memory string
	// LifetimeSeconds is 1 to MaxLifetimeSeconds.
	LifetimeSeconds int32
}

// PlatformDefaults are what an unconfigured platform gives.
func PlatformDefaults() Defaults {
	return Defaults{CPU: "1", Memory: "1Gi", LifetimeSeconds: 3600}
}

// orPlatform fills the fields that were left out.
func (d Defaults) orPlatform() Defaults {
	platform := PlatformDefaults()
	if d.CPU == "" {
		d.CPU = platform.CPU
	}
	if d.Memory == "" {
		d.Memory = platform.Memory
	}
	if d.LifetimeSeconds == 0 {
		d.LifetimeSeconds = platform.LifetimeSeconds
	}
	return d
}

// Request is a sandbox that someone asks for, and what it is held against.
type Request struct {
	Spec *sandboxv1.SandboxSpec
	// Policy is the runner's. Without one (and without Compiled) every sandbox
	// is refused; an empty policy restricts nothing.
	Policy *sandboxv1.Policy
	// Compiled takes the place of Policy where many sandboxes are held against
	// the same policy.
	Compiled *Compiled
	// EnforceResourceLimits is the runner's spec.enforce_resource_limits.
	EnforceResourceLimits bool
	Defaults              Defaults
}
