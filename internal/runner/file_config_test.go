package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbar-project/sandbar/internal/runner"
)

func TestLoadConfig(t *testing.T) {
	const valid = `{
		"server_url": "http://127.0.0.1:8080",
		"enrollment_token_file": "/r/token", "credential_file": "/r/credential",
		"state_directory": "/s", "version": "1.2.3",
		"engine": {"kind": "oci", "name": "r1", "data_directory": "/d", "registry_mirrors": {"docker.io": ["http://127.0.0.1:5000"]},
			"internal_prefixes": ["10.0.0.0/8"], "sandbox_subnet": "10.9.0.0/16"}%s}`
	for name, tc := range map[string]struct {
		content string
		// wrong: everything the error must name; empty: no error.
		wrong []string
	}{
		"a complete file is accepted":  {content: strings.Replace(valid, "%s", "", 1)},
		"an unknown key is refused":    {content: strings.Replace(valid, "%s", `, "colour": 1`, 1), wrong: []string{"colour"}},
		"a negative figure is refused": {content: strings.Replace(valid, "%s", `, "capacity": {"cpu_millis": -1}`, 1), wrong: []string{"capacity"}},
		"factors are read":             {content: strings.Replace(valid, "%s", `, "capacity": {"overcommit_cpu": "10", "overcommit_memory": "0.8"}`, 1)},
		"a factor of nothing is refused": {
			content: strings.Replace(valid, "%s", `, "capacity": {"overcommit_cpu": "0", "overcommit_memory": "1e9"}`, 1), wrong: []string{"0 is not a factor"},
		},
		"all that is wrong is told at once": {
			content: `{"server_url": "ftp://x", "state_directory": "relative", "engine": {"kind": "lxc"}}`,
			wrong:   []string{"server_url", "enrollment_token_file", "credential_file", "state_directory", "engine.data_directory", "version", "engine.kind", "engine.name"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "runner.json")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := runner.LoadConfig(path)
			if (err != nil) != (len(tc.wrong) > 0) {
				t.Fatalf("LoadConfig: %v", err)
			}
			for _, want := range tc.wrong {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not name %s: %v", want, err)
				}
			}
		})
	}
}
