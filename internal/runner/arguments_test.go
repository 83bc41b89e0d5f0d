package runner_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandbar-project/sandbar/internal/runner"
)

func TestArgumentsChangeTheConfiguration(t *testing.T) {
	base := runner.FileConfig{Version: "1", Capacity: runner.CapacityConfig{OvercommitCPU: 10, OvercommitMemory: 1}}
	for name, test := range map[string]struct {
		args []string
		want func(*runner.FileConfig)
		// wrong: all that the error must name; empty: no error.
		wrong []string
	}{
		"none": {want: func(*runner.FileConfig) {}},
		"each of them": {
			args: []string{"--log-level=debug", "--max-sandboxes", "7", "--overcommit-cpu=2.5", "--overcommit-memory", "0.5"},
			want: func(c *runner.FileConfig) {
				c.LogLevel = slog.LevelDebug
				c.Capacity = runner.CapacityConfig{MaxSandboxes: 7, OvercommitCPU: 2.5, OvercommitMemory: 0.5}
			},
		},
		"the last of a name counts": {
			args: []string{"--max-sandboxes=7", "--max-sandboxes=8"},
			want: func(c *runner.FileConfig) { c.Capacity.MaxSandboxes = 8 },
		},
		"an unknown one":         {args: []string{"--config=/etc/shadow"}, wrong: []string{`"--config=/etc/shadow"`, "--max-sandboxes"}},
		"one that is no flag":    {args: []string{"max-sandboxes=1"}, wrong: []string{`"max-sandboxes=1"`}},
		"one without its value":  {args: []string{"--log-level"}, wrong: []string{"--log-level=VALUE"}},
		"everything wrong, once": {args: []string{"--max-sandboxes=0", "-v", "--overcommit-cpu=1000", "--log-level=loud"}, wrong: []string{"--max-sandboxes", `"-v"`, "--overcommit-cpu", "loud"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := base, base
			err := got.Apply(test.args)
			if (err != nil) != (len(test.wrong) > 0) {
				t.Fatalf("Apply: %v", err)
			}
			for _, text := range test.wrong {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error does not name %s: %v", text, err)
				}
			}
			if err == nil {
				test.want(&want)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
