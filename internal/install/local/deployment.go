package local

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// inherited are the variables that a runner's process gets from the server's
// own environment: what networks and registries need, and no secret of the
// server's.
var inherited = []string{
	"PATH", "HOME", "TMPDIR", "TZ", "DOCKER_CONFIG",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
}

// reserved says whether a variable decides what the process is, so that a
// deployment cannot set it.
func reserved(variable string) bool {
	return variable == "PATH" || variable == "HOME" || strings.HasPrefix(variable, "LD_") || strings.HasPrefix(variable, "SANDBAR_")
}

// environment is a process's: the deployment's over what is inherited.
func environment(deployment *sandboxv1.DeploymentSpec) ([]string, error) {
	var env []string
	for _, variable := range inherited {
		value, set := os.LookupEnv(variable)
		if _, given := deployment.GetEnv()[variable]; set && !given {
			env = append(env, variable+"="+value)
		}
	}
	var wrong []error
	for _, variable := range slices.Sorted(maps.Keys(deployment.GetEnv())) {
		value := deployment.GetEnv()[variable]
		switch {
		case variable == "" || strings.ContainsAny(variable, "=\x00") || strings.Contains(value, "\x00"):
			wrong = append(wrong, fmt.Errorf("spec.overrides.env: %q is not a variable's name, or its value contains NUL", variable))
		case reserved(variable):
			wrong = append(wrong, fmt.Errorf("spec.overrides.env: %s is reserved on a local cluster; leave it out", variable))
		}
		env = append(env, variable+"="+value)
	}
	return env, errors.Join(wrong...)
}

// notApplicable names what the deployment says that means nothing to a process
// of this host.
func notApplicable(deployment *sandboxv1.DeploymentSpec) []string {
	var fields []string
	note := func(given bool, field string) {
		if given {
			fields = append(fields, field)
		}
	}
	note(len(deployment.GetNodeSelector()) > 0, "node_selector")
	note(len(deployment.GetTolerations()) > 0, "tolerations")
	note(deployment.GetResources().GetCpuRequest() != "", "resources.cpu_request")
	note(deployment.GetResources().GetMemoryRequest() != "", "resources.memory_request")
	note(deployment.GetInitResources() != nil, "init_resources")
	note(len(deployment.GetAnnotations()) > 0, "annotations")
	note(len(deployment.GetLabels()) > 0, "labels")
	note(deployment.GetScaling() != nil, "scaling")
	note(deployment.GetCpuRuntimeClass() != "", "cpu_runtime_class")
	note(deployment.GetGpuRuntimeClass() != "", "gpu_runtime_class")
	note(deployment.GetAffinity() != nil, "affinity")
	return fields
}
