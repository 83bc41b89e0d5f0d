package runner

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// arguments are what a deployment may say to the runner (spec.overrides.args),
// and how each changes its configuration.
func arguments() map[string]func(*FileConfig, string) error {
	return map[string]func(*FileConfig, string) error{
		"log-level": func(c *FileConfig, value string) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(value)); err != nil {
				return fmt.Errorf("%q is not debug, info, warn or error", value)
			}
			c.LogLevel = level
			return nil
		},
		"max-sandboxes": func(c *FileConfig, value string) error {
			count, err := strconv.Atoi(value)
			if err != nil || count < 1 {
				return fmt.Errorf("%q is not a number of at least 1", value)
			}
			c.Capacity.MaxSandboxes = count
			return nil
		},
		"disk-reserve": func(c *FileConfig, value string) error {
			return c.Capacity.DiskReserve.UnmarshalText([]byte(value))
		},
		"overcommit-cpu": func(c *FileConfig, value string) error {
			return c.Capacity.OvercommitCPU.UnmarshalText([]byte(value))
		},
		"overcommit-memory": func(c *FileConfig, value string) error {
			return c.Capacity.OvercommitMemory.UnmarshalText([]byte(value))
		},
	}
}

// Apply changes the configuration by a deployment's arguments, each written as
// --name=value or as --name and value; the last of a name counts. Everything
// that is wrong is reported at once, and then nothing has changed.
func (c *FileConfig) Apply(args []string) error {
	known := arguments()
	changed := *c
	var wrong []error
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		set := known[strings.TrimPrefix(name, "--")]
		if set == nil || !strings.HasPrefix(name, "--") {
			names := slices.Sorted(maps.Keys(known))
			wrong = append(wrong, fmt.Errorf("%q is unknown to a runner on this host, which takes --%s", args[i], strings.Join(names, ", --")))
			continue
		}
		if !hasValue {
			if i++; i == len(args) {
				wrong = append(wrong, fmt.Errorf("%s has no value; write %s=VALUE", name, name))
				break
			}
			value = args[i]
		}
		if err := set(&changed, value); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
		}
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	*c = changed
	return nil
}
