package runner

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
)

// process is how a sandbox's processes run.
type process struct {
	Argv []string `json:"argv"`
	// Env is NAME=value, each name once.
	Env        []string `json:"env"`
	WorkingDir string   `json:"working_dir"`
	User       string   `json:"user,omitempty"`
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// mainProcess merges a container with its image, as Kubernetes does: a command
// takes the place of the image's entrypoint and of its arguments, arguments
// alone take the place of the image's arguments. The command is one word, never
// split.
func mainProcess(container *sandboxv1.Container, image engine.ImageConfig) (process, error) {
	var argv []string
	switch {
	case container.GetCommand() != "":
		argv = append([]string{container.GetCommand()}, container.GetArgs()...)
	case len(container.GetArgs()) > 0:
		argv = slices.Concat(image.Entrypoint, container.GetArgs())
	default:
		argv = slices.Concat(image.Entrypoint, image.Cmd)
	}
	if len(argv) == 0 {
		return process{}, fmt.Errorf("image %s: %w", container.GetImage(), errNoProgram)
	}
	workingDir := container.GetWorkingDir()
	if workingDir == "" {
		workingDir = image.WorkingDir
	}
	return process{
		Argv:       argv,
		Env:        mergeEnv(append([]string{"PATH=" + defaultPath}, image.Env...), container.GetEnvironmentVariables()),
		WorkingDir: path.Join("/", workingDir),
		User:       user(container.GetSecurityContext(), image.User),
	}, nil
}

// user is the image's unless the container says otherwise; a group alone
// changes only the group.
func user(security *sandboxv1.SecurityContext, image string) string {
	name, group, _ := strings.Cut(image, ":")
	if security != nil && security.RunAsUser != nil {
		// Whoever the image's user is, the group was meant for that one.
		name, group = fmt.Sprint(security.GetRunAsUser()), ""
	}
	if security != nil && security.RunAsGroup != nil {
		group = fmt.Sprint(security.GetRunAsGroup())
	}
	switch {
	case group == "":
		return name
	case name == "":
		return "0:" + group
	}
	return name + ":" + group
}

// mergeEnv puts variables over an environment; what comes later wins. The
// order is that of first mention, then of names.
func mergeEnv(env []string, over map[string]string) []string {
	var names []string
	values := map[string]string{}
	set := func(name, value string) {
		if _, known := values[name]; !known {
			names = append(names, name)
		}
		values[name] = value
	}
	for _, entry := range env {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			set(name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		set(name, over[name])
	}
	merged := make([]string, len(names))
	for i, name := range names {
		merged[i] = name + "=" + values[name]
	}
	return merged
}

func (p process) message() *guestv1.Process {
	return &guestv1.Process{Argv: p.Argv, Env: p.Env, Cwd: p.WorkingDir, User: p.User}
}

// exec is a process beside the main one: it inherits everything but what it
// runs.
func (p process) exec(init *sandboxv1.ExecStreamInit) *guestv1.Process {
	env := p.Env
	if init.GetTty() {
		env = slices.Concat([]string{"TERM=xterm-256color"}, p.Env)
	}
	return &guestv1.Process{
		Argv: init.GetCommand(),
		Env:  mergeEnv(env, init.GetEnv()),
		Cwd:  p.WorkingDir,
		User: p.User,
		Tty:  init.GetTty(),
		Size: &guestv1.Resize{Columns: init.GetTtyWidth(), Rows: init.GetTtyHeight()},
	}
}

// absolute resolves a path of the sandbox against its working directory.
func (p process) absolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(p.WorkingDir, name)
}
