package local

import (
	"errors"
	"fmt"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"k8s.io/apimachinery/pkg/api/resource"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// cgroup bounds a runner's own process. The zero value bounds nothing.
type cgroup struct {
	manager cgroups.Manager
}

// cpuPeriod is of the kernel's CPU bandwidth control, in microseconds.
const cpuPeriod = 100_000

// newCgroup answers the zero value when there is nothing to bound.
func newCgroup(name string, resources *sandboxv1.RunnerResources) (cgroup, error) {
	limits := &cgroups.Resources{SkipDevices: true}
	var wrong []error
	if text := resources.GetCpuLimit(); text != "" {
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() <= 0 {
			wrong = append(wrong, fmt.Errorf("resources.cpu_limit: %q is not a positive quantity", text))
		}
		limits.CpuPeriod = cpuPeriod
		limits.CpuQuota = quantity.MilliValue() * cpuPeriod / 1000
	}
	if text := resources.GetMemoryLimit(); text != "" {
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() <= 0 {
			wrong = append(wrong, fmt.Errorf("resources.memory_limit: %q is not a positive quantity", text))
		}
		limits.Memory = quantity.Value()
	}
	if len(wrong) > 0 || (limits.CpuQuota == 0 && limits.Memory == 0) {
		return cgroup{}, errors.Join(wrong...)
	}
	made, err := manager.New(&cgroups.Cgroup{Path: "/" + name, Resources: limits})
	if err != nil {
		return cgroup{}, fmt.Errorf("limit the runner's process: %w", err)
	}
	return cgroup{manager: made}, nil
}

// openCgroup finds the group by its name alone, to remove it.
func openCgroup(name string) (cgroup, error) {
	found, err := manager.New(&cgroups.Cgroup{Path: "/" + name, Resources: &cgroups.Resources{SkipDevices: true}})
	if err != nil {
		return cgroup{}, fmt.Errorf("find the runner's control group: %w", err)
	}
	return cgroup{manager: found}, nil
}

// make makes the group with its limits; it fails on hosts that do not allow
// it.
func (c cgroup) make() error {
	if c.manager == nil {
		return nil
	}
	const nobody = -1
	if err := c.manager.Apply(nobody); err != nil {
		return fmt.Errorf("make the runner's control group: %w", err)
	}
	if err := c.manager.Set(nil); err != nil {
		return errors.Join(fmt.Errorf("limit the runner's process: %w", err), c.remove())
	}
	return nil
}

// add puts a process under the limits.
func (c cgroup) add(pid int) error {
	if c.manager == nil {
		return nil
	}
	if err := c.manager.Apply(pid); err != nil {
		return fmt.Errorf("limit the runner's process: %w", err)
	}
	return nil
}

func (c cgroup) remove() error {
	if c.manager == nil {
		return nil
	}
	if err := c.manager.Destroy(); err != nil {
		return fmt.Errorf("remove the runner's control group: %w", err)
	}
	return nil
}
