package gateway_test

import (
	"strings"
	"testing"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

func TestFilesAreDeclaredWhereTheyCanBe(t *testing.T) {
	_, h, c := ready(t)
	for name, test := range map[string]struct {
		paths []string
		want  []string
	}{
		"side by side":          {[]string{"/a/b", "/a/c", "/ab", "/etc/x", "/process/x", "/devices"}, nil},
		"in /proc":              {[]string{"/proc/sys/x", "/proc/y"}, []string{"spec.containers[0].files[0].path", "spec.containers[0].files[1].path"}},
		"in /sys, by a detour":  {[]string{"/a/../sys/x"}, []string{"spec.containers[0].files[0].path"}},
		"in /dev":               {[]string{"/dev/shm/x"}, []string{"spec.containers[0].files[0].path"}},
		"inside another":        {[]string{"/a", "/a/b"}, []string{"spec.containers[0].files[1].path"}},
		"inside a later one":    {[]string{"/a/b/c", "/a"}, []string{"spec.containers[0].files[0].path"}},
		"relative, two of them": {[]string{"a", "a/b"}, []string{"spec.containers[0].files[0].path", "spec.containers[0].files[1].path"}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := len(h.created)
			_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec(func(s *sandboxv1.SandboxSpec) {
				for _, path := range test.paths {
					s.Containers[0].Files = append(s.Containers[0].Files, &sandboxv1.FileMount{Path: path})
				}
			})}})
			if test.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantFields(t, err, test.want...)
			if len(h.created) != asked {
				t.Error("the runner was asked for it")
			}
		})
	}
}

func TestTagsAndNamesHaveNoHiddenCharacters(t *testing.T) {
	_, _, c := ready(t)
	_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec(func(s *sandboxv1.SandboxSpec) {
		s.Tags = []string{"fine", "größe", "a\x00b", "a\u202eb", "a\nb"}
		s.Containers[0].Name, s.PrimaryContainer = "m\u2066", ""
	})}})
	wantFields(t, err, "spec.containers[0].name", "spec.tags[2]", "spec.tags[3]", "spec.tags[4]")
	if err != nil && !strings.Contains(err.Error(), "U+202E") {
		t.Errorf("%v does not name the character", err)
	}
}

func TestAVeryLongValueIsNotQuotedWhole(t *testing.T) {
	_, _, c := ready(t)
	long := strings.Repeat("r", 1<<20)
	for name, edit := range map[string]func(*sandboxv1.SandboxSpec){
		"runner_ids": func(s *sandboxv1.SandboxSpec) {
			s.Mode, s.RunnerIds = sandboxv1.SandboxMode_SANDBOX_MODE_CKS, []string{long}
		},
		"runner_ids, twice": func(s *sandboxv1.SandboxSpec) {
			s.Mode, s.RunnerIds = sandboxv1.SandboxMode_SANDBOX_MODE_CKS, []string{long, long}
		},
		"image":             func(s *sandboxv1.SandboxSpec) { s.Containers[0].Image = "UPPER " + long },
		"tags":              func(s *sandboxv1.SandboxSpec) { s.Tags = []string{long + "\x00"} },
		"primary_container": func(s *sandboxv1.SandboxSpec) { s.PrimaryContainer = long },
		"cpu":               func(s *sandboxv1.SandboxSpec) { s.Containers[0].ResourceRequirements.Limits.Cpu = long },
		"env": func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].EnvironmentVariables = map[string]string{"=" + long: ""}
		},
	} {
		_, err := c.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Sandbox: &sandboxv1.Sandbox{Spec: spec(edit)}})
		if err == nil {
			if name != "image" {
				t.Errorf("%s: accepted", name)
			}
			continue
		}
		size := len(err.Error())
		for _, v := range apierr.BadRequest(err).GetFieldViolations() {
			size += len(v.GetDescription())
		}
		if apierr.ReasonOf(err) == "" || size > 4096 {
			t.Errorf("%s: %d bytes, %s: %.200v", name, size, apierr.ReasonOf(err), err)
		}
	}
	_, err := c.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: long})
	if apierr.ReasonOf(err) != apierr.SandboxNotFound || len(err.Error()) > 4096 {
		t.Errorf("GetSandbox: %.200v", err)
	}
}
