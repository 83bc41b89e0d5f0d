package gateway

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/fieldrules"
)

// Limits of the public contract.
const (
	maxRequestIDBytes = 128
	maxTagCharacters  = 59
	maxRunnerIDs      = 100
	maxPathBytes      = 4096
	maxNameCharacters = 63
)

// violations collects what is wrong with a request.
type violations []apierr.Violation

func (v *violations) add(field, rule, format string, args ...any) {
	*v = append(*v, apierr.Violated(field, rule, format, args...))
}

// addOthers adds those of fields that have none yet.
func (v *violations) addOthers(others violations) {
	known := map[string]bool{}
	for _, own := range *v {
		known[own.Field] = true
	}
	for _, other := range others {
		if !known[other.Field] {
			*v = append(*v, other)
		}
	}
}

// err is nil when nothing is wrong.
func (v violations) err() error { return apierr.Invalid(apierr.InvalidRequest, v) }

func (v *violations) required(field, value string) {
	if value == "" {
		v.add(field, "REQUIRED", "is required")
	}
}

func (v *violations) sandboxID(id string) { v.required("sandbox_id", id) }

// noNUL is for what becomes part of an argument vector or a path.
func (v *violations) noNUL(field, value string) {
	if strings.ContainsRune(value, 0) {
		v.add(field, "NUL", "contains a NUL byte, which no program can be given")
	}
}

// visible is for names and labels, which are shown beside others.
func (v *violations) visible(field, value string) {
	if character, found := fieldrules.Hidden(value); found {
		v.add(field, "HIDDEN_CHARACTER", "%q contains the character %U, which is not seen; leave it out", value, character)
	}
}

// checkCreate checks the shape of the request. What the values may be is the
// policy's part.
func checkCreate(req *sandboxv1.CreateSandboxRequest) violations {
	spec := req.GetSandbox().GetSpec()
	var v violations
	v.requestID(req.GetRequestId())
	if spec == nil {
		v.add("spec", "REQUIRED", "is required")
		return v
	}
	if len(spec.GetContainers()) == 0 {
		v.add("spec.containers", "REQUIRED", "is required: exactly one container")
	}
	for i, container := range spec.GetContainers() {
		v.container(fmt.Sprintf("spec.containers[%d]", i), container)
	}
	if name := spec.GetPrimaryContainer(); name != "" && len(spec.GetContainers()) > 0 &&
		!slices.ContainsFunc(spec.GetContainers(), func(c *sandboxv1.Container) bool { return c.GetName() == name }) {
		v.add("spec.primary_container", "UNKNOWN", "%q is not the name of a container in spec.containers", name)
	}
	v.placement(spec)
	v.tags("spec.tags", spec.GetTags())
	v.services(spec.GetServices())
	return v
}

func (v *violations) requestID(id string) {
	switch {
	case len(id) > maxRequestIDBytes:
		v.add("request_id", "TOO_LONG", "has %d bytes; at most %d are allowed", len(id), maxRequestIDBytes)
	case !utf8.ValidString(id):
		v.add("request_id", "NOT_UTF8", "is not valid UTF-8")
	}
}

func (v *violations) container(field string, c *sandboxv1.Container) {
	v.required(field+".name", c.GetName())
	if utf8.RuneCountInString(c.GetName()) > maxNameCharacters {
		v.add(field+".name", "TOO_LONG", "is longer than %d characters", maxNameCharacters)
	}
	v.visible(field+".name", c.GetName())
	v.required(field+".image", c.GetImage())
	v.noNUL(field+".command", c.GetCommand())
	for i, arg := range c.GetArgs() {
		v.noNUL(fmt.Sprintf("%s.args[%d]", field, i), arg)
	}
	v.environment(field+".environment_variables", c.GetEnvironmentVariables())
	if dir := c.GetWorkingDir(); dir != "" {
		v.absolute(field+".working_dir", dir)
	}
	v.files(field+".files", c.GetFiles())
}

// reservedDirs are made by the kernel in every sandbox; no file can be put
// there.
var reservedDirs = []string{"/proc", "/sys", "/dev"}

func (v *violations) files(field string, files []*sandboxv1.FileMount) {
	first := map[string]int{}
	for i, file := range files {
		if clean := path.Clean(file.GetPath()); strings.HasPrefix(clean, "/") {
			if _, ok := first[clean]; !ok {
				first[clean] = i
			}
		}
	}
	for i, file := range files {
		at := fmt.Sprintf("%s[%d].path", field, i)
		before := len(*v)
		v.absolute(at, file.GetPath())
		if len(*v) > before {
			continue
		}
		clean := path.Clean(file.GetPath())
		if clean == "/" {
			v.add(at, "NOT_A_FILE", "%q is a directory; name a file", file.GetPath())
			continue
		}
		for _, dir := range reservedDirs {
			if clean == dir || strings.HasPrefix(clean, dir+"/") {
				v.add(at, "RESERVED", "%q is in %s, which the system makes; put the file elsewhere", file.GetPath(), dir)
			}
		}
		if j := first[clean]; j != i {
			v.add(at, "DUPLICATE", "%q is also %s[%d].path", file.GetPath(), field, j)
		}
		for dir := path.Dir(clean); dir != "/"; dir = path.Dir(dir) {
			if j, ok := first[dir]; ok {
				v.add(at, "INSIDE_A_FILE", "%q is inside %s[%d].path, %q, which is a file and no directory", file.GetPath(), field, j, files[j].GetPath())
			}
		}
	}
}

func (v *violations) environment(field string, env map[string]string) {
	names := make([]string, 0, len(env))
	for name := range env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		at := fmt.Sprintf("%s[%q]", field, name)
		if name == "" || strings.ContainsAny(name, "=\x00") {
			v.add(at, "INVALID_NAME", "names of variables are not empty and contain neither \"=\" nor a NUL byte")
		}
		v.noNUL(at, env[name])
	}
}

func (v *violations) absolute(field, p string) {
	switch {
	case p == "":
		v.add(field, "REQUIRED", "is required")
	case !strings.HasPrefix(p, "/"):
		v.add(field, "NOT_ABSOLUTE", "%q must begin with \"/\"", p)
	case len(p) > maxPathBytes:
		v.add(field, "TOO_LONG", "has %d bytes; at most %d are allowed", len(p), maxPathBytes)
	}
	v.noNUL(field, p)
}

func (v *violations) placement(spec *sandboxv1.SandboxSpec) {
	if _, ok := sandboxv1.SandboxMode_name[int32(spec.GetMode())]; !ok {
		v.add("spec.mode", "UNKNOWN", "%d is not a mode; use SANDBOX_MODE_SERVERLESS or SANDBOX_MODE_CKS", spec.GetMode())
	}
	ids := spec.GetRunnerIds()
	if len(ids) > 0 && spec.GetMode() != sandboxv1.SandboxMode_SANDBOX_MODE_CKS {
		v.add("spec.runner_ids", "NEEDS_CKS", "runners can be chosen only with spec.mode SANDBOX_MODE_CKS")
	}
	if len(ids) > maxRunnerIDs {
		v.add("spec.runner_ids", "TOO_MANY", "has %d ids; at most %d are allowed", len(ids), maxRunnerIDs)
	}
	for i, id := range ids {
		at := fmt.Sprintf("spec.runner_ids[%d]", i)
		if strings.TrimSpace(id) == "" {
			v.add(at, "BLANK", "is blank; name a runner")
		}
		if first := slices.Index(ids, id); first < i {
			v.add(at, "DUPLICATE", "%q is also spec.runner_ids[%d]", id, first)
		}
	}
}

func (v *violations) tags(field string, tags []string) {
	for i, tag := range tags {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.required(at, tag)
		if n := utf8.RuneCountInString(tag); n > maxTagCharacters {
			v.add(at, "TOO_LONG", "has %d characters; at most %d are allowed", n, maxTagCharacters)
		}
		v.visible(at, tag)
	}
}

func (v *violations) services(services []*sandboxv1.Service) {
	type endpoint struct {
		port     int32
		protocol sandboxv1.ServiceProtocol
	}
	seen := map[endpoint]int{}
	for i, service := range services {
		at := fmt.Sprintf("spec.services[%d]", i)
		if service.GetPort() < 1 || service.GetPort() > 65535 {
			v.add(at+".port", "OUT_OF_RANGE", "%d is not a port; 1 to 65535 are", service.GetPort())
		}
		protocol := service.GetProtocol()
		if _, ok := sandboxv1.ServiceProtocol_name[int32(protocol)]; !ok {
			v.add(at+".protocol", "UNKNOWN", "%d is not a protocol", protocol)
		}
		if protocol == sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_UNSPECIFIED {
			protocol = sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_TCP
		}
		key := endpoint{service.GetPort(), protocol}
		if first, ok := seen[key]; ok {
			v.add(at+".port", "DUPLICATE", "%d is also spec.services[%d].port", service.GetPort(), first)
		} else {
			seen[key] = i
		}
	}
}
