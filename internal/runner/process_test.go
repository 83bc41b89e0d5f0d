package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
)

func TestContainerIsMergedWithItsImage(t *testing.T) {
	image := engine.ImageConfig{
		Entrypoint: []string{"/entry", "-e"}, Cmd: []string{"arg"},
		Env: []string{"A=image", "B=image"}, WorkingDir: "/srv", User: "app:staff",
	}
	path := "PATH=" + defaultPath
	for name, tc := range map[string]struct {
		container *sandboxv1.Container
		want      process
	}{
		"nothing said: the image decides": {
			&sandboxv1.Container{},
			process{[]string{"/entry", "-e", "arg"}, []string{path, "A=image", "B=image"}, "/srv", "app:staff"},
		},
		"arguments take the place of the image's": {
			&sandboxv1.Container{Args: []string{"x", "y"}},
			process{[]string{"/entry", "-e", "x", "y"}, []string{path, "A=image", "B=image"}, "/srv", "app:staff"},
		},
		"a command drops the image's arguments and is not split": {
			&sandboxv1.Container{Command: "/bin/my program"},
			process{[]string{"/bin/my program"}, []string{path, "A=image", "B=image"}, "/srv", "app:staff"},
		},
		"environment, directory and user are the container's": {
			&sandboxv1.Container{
				EnvironmentVariables: map[string]string{"B": "container", "C": "=x"}, WorkingDir: "/work",
				SecurityContext: &sandboxv1.SecurityContext{RunAsUser: proto.Uint32(1000)},
			},
			process{[]string{"/entry", "-e", "arg"}, []string{path, "A=image", "B=container", "C==x"}, "/work", "1000"},
		},
		"a group alone keeps the user": {
			&sandboxv1.Container{SecurityContext: &sandboxv1.SecurityContext{RunAsGroup: proto.Uint32(5)}},
			process{[]string{"/entry", "-e", "arg"}, []string{path, "A=image", "B=image"}, "/srv", "app:5"},
		},
		"root is a user like any other": {
			&sandboxv1.Container{SecurityContext: &sandboxv1.SecurityContext{RunAsUser: proto.Uint32(0), RunAsGroup: proto.Uint32(0)}},
			process{[]string{"/entry", "-e", "arg"}, []string{path, "A=image", "B=image"}, "/srv", "0:0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mainProcess(tc.container, image)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImageWithoutAProgramNeedsACommand(t *testing.T) {
	if got, err := mainProcess(&sandboxv1.Container{Args: nil}, engine.ImageConfig{}); err == nil {
		t.Errorf("made %v", got)
	}
}

func TestExecInheritsFromTheContainer(t *testing.T) {
	p := process{Env: []string{"A=1", "B=2"}, WorkingDir: "/work", User: "app"}
	got := p.exec(&sandboxv1.ExecStreamInit{Command: []string{"x"}, Env: map[string]string{"B": "3"}, Tty: true, TtyWidth: 80, TtyHeight: 24})
	want := &guestv1.Process{
		Argv: []string{"x"}, Env: []string{"TERM=xterm-256color", "A=1", "B=3"}, Cwd: "/work", User: "app",
		Tty: true, Size: &guestv1.Resize{Columns: 80, Rows: 24},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestRelativePathsAreOfTheWorkingDirectory(t *testing.T) {
	p := process{WorkingDir: "/work"}
	for path, want := range map[string]string{"/a": "/a", "a/b": "/work/a/b", "../a": "/a", ".": "/work"} {
		if got := p.absolute(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}
