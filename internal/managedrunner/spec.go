package managedrunner

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/maintenance"
)

func validateSpec(f *apierr.Violations, spec *sandboxv1.ManagedRunnerSpec) {
	f.Merge(maintenance.Validate(spec.GetMaintenancePolicy(), "spec.maintenance_policy"))
	validateOverrides(f, spec.GetOverrides())
	for i, driver := range spec.GetVolumes().GetCsiDriverAllowlist() {
		if len(validation.IsDNS1123Subdomain(driver)) > 0 {
			f.Add(fmt.Sprintf("spec.volumes.csi_driver_allowlist[%d]", i), "CSI_DRIVER", "%q is not the name of a CSI driver, such as csi.vastdata.com", driver)
		}
	}
	if spec.GetDataPlane() != nil {
		validateDataPlane(f, spec.GetDataPlane())
	}
}

func validateOverrides(f *apierr.Violations, overrides *sandboxv1.RunnerOverrides) {
	const path = "spec.overrides"
	validateLabels(f, path+".node_selector", overrides.GetNodeSelector())
	validateLabels(f, path+".labels", overrides.GetLabels())
	validateAnnotations(f, path+".annotations", overrides.GetAnnotations())
	for _, name := range slices.Sorted(maps.Keys(overrides.GetEnv())) {
		if len(validation.IsEnvVarName(name)) > 0 {
			f.Add(entry(path+".env", name), "ENV_NAME", "is not the name of an environment variable: use letters, digits, \"_\", \"-\" and \".\", not beginning with a digit")
		}
		if strings.ContainsRune(overrides.GetEnv()[name], 0) {
			f.Add(entry(path+".env", name), "ENV_VALUE", "must not contain a NUL character")
		}
	}
	for i, toleration := range overrides.GetTolerations() {
		validateToleration(f, fmt.Sprintf("%s.tolerations[%d]", path, i), toleration)
	}
	validateResources(f, path+".resources", overrides.GetResources())
	validateScaling(f, path+".scaling", overrides.GetScaling())
	validateRuntimeClass(f, path+".cpu_runtime_class", overrides.GetCpuRuntimeClass())
	validateRuntimeClass(f, path+".gpu_runtime_class", overrides.GetGpuRuntimeClass())
	for _, key := range slices.Sorted(maps.Keys(overrides.GetAffinity().GetFields())) {
		if key != "nodeAffinity" && key != "podAffinity" && key != "podAntiAffinity" {
			f.Add(path+".affinity."+key, "AFFINITY", "is not part of a Kubernetes Affinity: use nodeAffinity, podAffinity and podAntiAffinity")
		}
	}
}

func validateToleration(f *apierr.Violations, path string, toleration *sandboxv1.Toleration) {
	if toleration.GetOperator() == "Exists" && toleration.GetValue() != "" {
		f.Add(path+".value", "TOLERATION", "must be empty with operator Exists")
	}
	if toleration.GetKey() == "" && toleration.GetOperator() != "Exists" {
		f.Add(path+".key", "TOLERATION", "is required, except with operator Exists, where an empty key tolerates everything")
	}
	if key := toleration.GetKey(); key != "" && len(validation.IsQualifiedName(key)) > 0 {
		f.Add(path+".key", "TOLERATION", "%q is not a taint's key, such as example.com/dedicated", key)
	}
}

func validateResources(f *apierr.Violations, path string, resources *sandboxv1.RunnerResources) {
	pairs := []struct{ name, request, limit string }{
		{"cpu", resources.GetCpuRequest(), resources.GetCpuLimit()},
		{"memory", resources.GetMemoryRequest(), resources.GetMemoryLimit()},
	}
	for _, pair := range pairs {
		request, requestOK := parseQuantity(f, path+"."+pair.name+"_request", pair.request)
		limit, limitOK := parseQuantity(f, path+"."+pair.name+"_limit", pair.limit)
		if requestOK && limitOK && request.Cmp(limit) > 0 {
			f.Add(path+"."+pair.name+"_request", "REQUEST_OVER_LIMIT", "is %s, which is more than %s_limit, %s", pair.request, pair.name, pair.limit)
		}
	}
}

// parseQuantity answers false for an empty text, and for one that it has found
// fault with.
func parseQuantity(f *apierr.Violations, path, text string) (resource.Quantity, bool) {
	if text == "" {
		return resource.Quantity{}, false
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		f.Add(path, "QUANTITY", "%q is not a quantity; write it as in Kubernetes: \"500m\", \"2\", \"512Mi\", \"8Gi\"", text)
		return resource.Quantity{}, false
	}
	if quantity.Sign() <= 0 {
		f.Add(path, "QUANTITY", "is %s and must be more than 0; leave it out for the default", text)
		return resource.Quantity{}, false
	}
	return quantity, true
}

func validateScaling(f *apierr.Violations, path string, scaling *sandboxv1.RunnerScaling) {
	if scaling.GetMaxReplicas() != 0 && scaling.GetMinReplicas() > scaling.GetMaxReplicas() {
		f.Add(path+".min_replicas", "SCALING", "is %d, which is more than max_replicas, %d", scaling.GetMinReplicas(), scaling.GetMaxReplicas())
	}
	if scaling.GetAutoscalingEnabled() && scaling.GetMaxReplicas() == 0 {
		f.Add(path+".max_replicas", "SCALING", "is required with autoscaling_enabled, and must be at least 1")
	}
}

func validateRuntimeClass(f *apierr.Violations, path, name string) {
	if name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
		f.Add(path, "RUNTIME_CLASS", "%q is not the name of a RuntimeClass: use lower-case letters, digits, \"-\" and \".\"", name)
	}
}

func validateDataPlane(f *apierr.Violations, config *sandboxv1.RunnerDataPlaneConfig) {
	const path = "spec.data_plane"
	switch exposure := config.GetExposure().(type) {
	case nil:
		f.Add(path, "DATA_PLANE", "must hold exactly one of disabled, cluster_ip, load_balancer and custom")
	case *sandboxv1.RunnerDataPlaneConfig_Disabled:
	case *sandboxv1.RunnerDataPlaneConfig_ClusterIp:
		validateAnnotations(f, path+".cluster_ip.annotations", exposure.ClusterIp.GetAnnotations())
	case *sandboxv1.RunnerDataPlaneConfig_LoadBalancer:
		validateLoadBalancer(f, path+".load_balancer", exposure.LoadBalancer)
	case *sandboxv1.RunnerDataPlaneConfig_Custom:
		validateAnnotations(f, path+".custom.service_annotations", exposure.Custom.GetServiceAnnotations())
		uri, err := url.Parse(exposure.Custom.GetAdvertisedUri())
		switch {
		case exposure.Custom.GetAdvertisedUri() == "":
			f.Add(path+".custom.advertised_uri", "REQUIRED", "is required: the absolute URI that clients are given")
		case err != nil || !uri.IsAbs() || uri.Host == "" || uri.User != nil || uri.Fragment != "":
			f.Add(path+".custom.advertised_uri", "ADVERTISED_URI", "must be an absolute URI with a host and without user or fragment, such as https://sandboxes.example.com:8443")
		}
	}
}

func validateLoadBalancer(f *apierr.Violations, path string, config *sandboxv1.RunnerDataPlaneLoadBalancerConfig) {
	validateAnnotations(f, path+".annotations", config.GetAnnotations())
	for i, text := range config.GetSourceRanges() {
		field := fmt.Sprintf("%s.source_ranges[%d]", path, i)
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			f.Add(field, "CIDR", "%q is not a CIDR block, such as 203.0.113.0/24", text)
		case prefix.Addr().Is4In6():
			f.Add(field, "CIDR", "%q is IPv4 in IPv6 notation; write it as IPv4", text)
		case prefix != prefix.Masked() || prefix.String() != text:
			f.Add(field, "CIDR", "%q is not canonical; write %s", text, prefix.Masked())
		}
	}
	if class := config.GetLoadBalancerClass(); class != "" && len(validation.IsQualifiedName(class)) > 0 {
		f.Add(path+".load_balancer_class", "LOAD_BALANCER_CLASS", "%q is not the name of a class, such as example.com/internal", class)
	}
	if host := config.GetHostname(); host != "" && len(validation.IsDNS1123Subdomain(host)) > 0 {
		f.Add(path+".hostname", "HOSTNAME", "%q is not a host name in lower case", host)
	}
}

func validateLabels(f *apierr.Violations, path string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if len(validation.IsQualifiedName(key)) > 0 {
			f.Add(entry(path, key), "LABEL_KEY", "is not a label's key, such as example.com/pool")
		}
		if len(validation.IsValidLabelValue(labels[key])) > 0 {
			f.Add(entry(path, key), "LABEL_VALUE", "%q is not a label's value: use up to 63 letters, digits, \"-\", \"_\" and \".\"", labels[key])
		}
	}
}

func validateAnnotations(f *apierr.Violations, path string, annotations map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			f.Add(entry(path, key), "ANNOTATION_KEY", "is not an annotation's key, such as example.com/owner")
		}
	}
}

// entry is the path of one entry of a map.
func entry(path, key string) string { return fmt.Sprintf("%s[%q]", path, key) }
