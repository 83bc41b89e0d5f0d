package provider

import (
	"context"
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// fromJSON makes a value of a type from JSON, with null for what is missing;
// the text "unknown" is a value that is not known yet.
func fromJSON(t *testing.T, kind tftypes.Type, document any) tftypes.Value {
	t.Helper()
	if document == "unknown" {
		return tftypes.NewValue(kind, tftypes.UnknownValue)
	}
	if document == nil {
		return tftypes.NewValue(kind, nil)
	}
	elements := func(element tftypes.Type) []tftypes.Value {
		values := []tftypes.Value{}
		for _, one := range document.([]any) {
			values = append(values, fromJSON(t, element, one))
		}
		return values
	}
	switch k := kind.(type) {
	case tftypes.Object:
		members := document.(map[string]any)
		values := map[string]tftypes.Value{}
		for name, member := range k.AttributeTypes {
			values[name] = fromJSON(t, member, members[name])
		}
		for name := range members {
			if _, ok := k.AttributeTypes[name]; !ok {
				t.Fatalf("there is no attribute %s", name)
			}
		}
		return tftypes.NewValue(kind, values)
	case tftypes.List:
		return tftypes.NewValue(kind, elements(k.ElementType))
	case tftypes.Set:
		return tftypes.NewValue(kind, elements(k.ElementType))
	case tftypes.Map:
		values := map[string]tftypes.Value{}
		for key, one := range document.(map[string]any) {
			values[key] = fromJSON(t, k.ElementType, one)
		}
		return tftypes.NewValue(kind, values)
	}
	if number, ok := document.(float64); ok {
		return tftypes.NewValue(kind, big.NewFloat(number))
	}
	return tftypes.NewValue(kind, document)
}

// problems validates a configuration of a runner, given as JSON, and answers
// "path: summary: detail" for each error.
func problems(t *testing.T, config string) []string {
	t.Helper()
	members := map[string]any{"runner_id": "r", "cluster_id": "c", "zone": "z", "policy": map[string]any{}}
	if err := json.Unmarshal([]byte(config), &members); err != nil {
		t.Fatalf("%s: %v", config, err)
	}
	object := testTranslation().object
	value, err := tfprotov6.NewDynamicValue(object, fromJSON(t, object, members))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := providerserver.NewProtocol6(New(DefaultPace()))().ValidateResourceConfig(context.Background(), &tfprotov6.ValidateResourceConfigRequest{
		TypeName: "coreweave_sandbox_managed_runner", Config: &value,
	})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range resp.Diagnostics {
		found = append(found, d.Attribute.String()+": "+d.Summary+": "+d.Detail)
	}
	return found
}

// constraints wraps a fragment of policy.constraints.
func constraints(fragment string) string { return `{"policy": {"constraints": {` + fragment + `}}}` }

func egress(rules string) string {
	return constraints(`"network": {"allowed_egress": [` + rules + `]}`)
}

func mappings(list, more string) string {
	return constraints(`"security": {"runtime_class_mappings": [` + list + `]` + more + `}`)
}

func TestWhatIsWrongIsRefusedBeforeAnyCall(t *testing.T) {
	const named = `{"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT", "kubernetes_runtime_class_name": "gvisor"}`
	for rule, c := range map[string]struct{ config, wants string }{
		"zone in upper case":                 {`{"zone": "US-EAST-04A"}`, "lower()"},
		"empty runner id":                    {`{"runner_id": ""}`, "runner_id"},
		"empty group":                        {`{"runner_group_id": ""}`, "runner_group_id"},
		"egress rule without a destination":  {egress(`{}`), "Missing destination"},
		"egress rule with two destinations":  {egress(`{"any": true, "tenant": "TENANT_SCOPE_SAME_ORG"}`), "cannot be set together"},
		"ingress rule without a source":      {constraints(`"network": {"allowed_ingress": [{}]}`), "Missing source"},
		"any = false":                        {egress(`{"any": false}`), "Invalid selection"},
		"hostname in default_egress":         {constraints(`"network": {"default_egress": [{"https_hostname": "a.example.com"}]}`), "Hostname in default_egress"},
		"hostname under its older name":      {constraints(`"network": {"default_egress": [{"dns_name": "a.example.com"}]}`), "Hostname in default_egress"},
		"end_port below port":                {egress(`{"any": true, "ports": [{"port": 443, "end_port": 80}]}`), "Invalid port range"},
		"port 0":                             {egress(`{"any": true, "ports": [{"port": 0}]}`), "port"},
		"unknown protocol":                   {egress(`{"any": true, "ports": [{"port": 1, "protocol": "ICMP"}]}`), "protocol"},
		"CIDR with host bits":                {egress(`{"cidr": {"cidr": "10.0.0.1/8"}}`), "10.0.0.0/8"},
		"CIDR that is none":                  {egress(`{"cidr": {"cidr": "10.0.0.0"}}`), "not a CIDR block"},
		"IPv4-mapped CIDR":                   {egress(`{"cidr": {"cidr": "::ffff:10.0.0.0/104"}}`), "IPv4-mapped"},
		"selector without labels":            {egress(`{"selector": {"pod_labels": {}}}`), "pod_labels"},
		"both names of a hostname":           {egress(`{"https_hostname": "a.example", "dns_name": "a.example"}`), "cannot be set together"},
		"both names of an exception":         {egress(`{"any": true, "dns_name_except": ["a.example"], "https_hostname_except": ["a.example"]}`), "cannot set both"},
		"both names of deny_dns":             {constraints(`"network": {"deny_dns": true, "deny_https_hostname_rules": true}`), "cannot set both"},
		"redundant source":                   {`{"policy": {"control_plane_access": {"source_ip_allowlist": {"cidrs": ["10.0.0.0/8", "10.1.0.0/16"]}}}}`, "covered by 10.0.0.0/8"},
		"mappings with an allowlist":         {mappings(named, `, "allowed_runtime_classes": ["gvisor"]`), "cannot be combined with allowed_runtime_classes"},
		"mappings with a default":            {mappings(named, `, "default_cpu_runtime_class": "gvisor"`), "cannot be combined with default_cpu_runtime_class"},
		"class mapped twice":                 {mappings(named+`, {"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT", "node_default": true}`, ""), "mapped more than once"},
		"mapping without a target":           {mappings(`{"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT"}`, ""), "Missing target"},
		"mapping to nothing":                 {mappings(`{"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT", "node_default": false}`, ""), "Invalid selection"},
		"mapping of the unspecified class":   {mappings(`{"runtime_class": "RUNTIME_CLASS_UNSPECIFIED", "node_default": true}`, ""), "runtime_class"},
		"mapping to an invalid name":         {mappings(`{"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT", "kubernetes_runtime_class_name": "gVisor"}`, ""), "name of a RuntimeClass"},
		"nested virtualization on the node":  {mappings(`{"runtime_class": "RUNTIME_CLASS_CPU_NESTED_VIRT", "node_default": true}`, ""), "RUNTIME_CLASS_CPU_NESTED_VIRT"},
		"quantity that is none":              {constraints(`"resources": {"max_cpu": "two"}`), "not a quantity"},
		"negative GPU count":                 {constraints(`"resources": {"max_gpu_count": -1}`), "max_gpu_count"},
		"lifetime beyond 30 days":            {constraints(`"lifecycle": {"default_lifetime_seconds": 2592001}`), "2592000"},
		"null in a set":                      {constraints(`"image": {"allowed_images": [null]}`), "Null"},
		"null in a map":                      {`{"spec": {"overrides": {"env": {"A": null}}}}`, "Null"},
		"base that is a list":                {`{"policy": {"base": "[]"}}`, "not a JSON object"},
		"base that is null":                  {`{"policy": {"base": "null"}}`, "null"},
		"affinity that is no JSON":           {`{"spec": {"overrides": {"affinity": "{"}}}`, "not a JSON object"},
		"unspecified channel":                {`{"spec": {"release_channel": "RELEASE_CHANNEL_UNSPECIFIED"}}`, "release_channel"},
		"two ways to the data":               {`{"spec": {"data_plane": {"disabled": true, "cluster_ip": {}}}}`, "cannot be set together"},
		"no way to the data":                 {`{"spec": {"data_plane": {}}}`, "Missing way"},
		"exclusion that ends before it":      {`{"spec": {"maintenance_policy": {"exclusions": [{"start_time": "2027-01-02T00:00:00Z", "end_time": "2027-01-02T00:00:00Z"}]}}}`, "must be after"},
		"exclusion without a time":           {`{"spec": {"maintenance_policy": {"exclusions": [{"start_time": "tomorrow", "end_time": "2027-01-02T00:00:00Z"}]}}}`, "not a time"},
		"window shorter than a minute":       {`{"spec": {"maintenance_policy": {"windows": [{"cron": "0 2 * * *", "duration_seconds": 59}]}}}`, "duration_seconds"},
		"min_replicas above max_replicas":    {`{"spec": {"overrides": {"scaling": {"min_replicas": 3, "max_replicas": 2}}}}`, "must not be more than"},
		"toleration with an unknown effect":  {`{"spec": {"overrides": {"tolerations": [{"effect": "Never"}]}}}`, "effect"},
		"source range that is not canonical": {`{"spec": {"data_plane": {"load_balancer": {"source_ranges": ["192.0.2.1/24"]}}}}`, "192.0.2.0/24"},
	} {
		t.Run(rule, func(t *testing.T) {
			found := problems(t, c.config)
			if !slices.ContainsFunc(found, func(problem string) bool { return strings.Contains(problem, c.wants) }) {
				t.Errorf("%s\ngot %q, want one with %q", c.config, found, c.wants)
			}
		})
	}
}

func TestWhatIsWrongIsNamedInTheText(t *testing.T) {
	for text, config := range map[string]string{
		`policy.constraints.resources.default_memory: "lots" is not a quantity`:            constraints(`"resources": {"default_memory": "lots"}`),
		"policy.constraints.network.allowed_egress[0].any: false selects nothing":          egress(`{"any": false, "tenant": "TENANT_SCOPE_SAME_ORG"}`),
		"policy.constraints.network.allowed_egress[0]: Set exactly one of":                 egress(`{}`),
		"spec.overrides.scaling.min_replicas: ":                                            `{"spec": {"overrides": {"scaling": {"min_replicas": 3, "max_replicas": 2}}}}`,
		"Attribute policy.constraints.resources.max_gpu_count value must be at least 0":    constraints(`"resources": {"max_gpu_count": -1}`),
		"policy.control_plane_access.source_ip_allowlist.cidrs: ":                          `{"policy": {"control_plane_access": {"source_ip_allowlist": {"cidrs": ["10.0.0.0/8", "10.1.0.0/16"]}}}}`,
		"policy.constraints.security.runtime_class_mappings: ":                             mappings(`{"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT", "node_default": true}, {"runtime_class": "RUNTIME_CLASS_CPU_DEFAULT", "kubernetes_runtime_class_name": "gvisor"}`, ""),
		"spec.maintenance_policy.windows[0].duration_seconds value must be between 60 and": `{"spec": {"maintenance_policy": {"windows": [{"cron": "0 2 * * *", "duration_seconds": 59}]}}}`,
	} {
		found := problems(t, config)
		if !slices.ContainsFunc(found, func(problem string) bool { return strings.Contains(problem, text) }) {
			t.Errorf("%s\ngot %q, want one with %q", config, found, text)
		}
	}
}

func TestWhatIsRightIsAccepted(t *testing.T) {
	for rule, config := range map[string]string{
		"empty policy":                      `{}`,
		"empty spec":                        `{"spec": {}}`,
		"no upper bound of replicas":        `{"spec": {"overrides": {"scaling": {"min_replicas": 3, "max_replicas": 0}}}}`,
		"one port":                          egress(`{"any": true, "ports": [{"port": 443, "end_port": 0}]}`),
		"wildcard with exceptions":          egress(`{"https_hostname": "*", "https_hostname_except": ["a.example"]}`),
		"older names":                       constraints(`"network": {"deny_dns": true, "allowed_egress": [{"dns_name": "a.example", "dns_name_except": ["b.example"]}]}`),
		"disjoint sources of both families": `{"policy": {"control_plane_access": {"source_ip_allowlist": {"cidrs": ["10.0.0.0/8", "11.0.0.0/8", "2001:db8::/32"]}}}}`,
		"rules against affinity":            `{"spec": {"overrides": {"affinity": "{}"}}}`,
		"unknown everywhere":                `{"zone": "unknown", "spec": "unknown", "policy": "unknown"}`,
		"unknown arm of the data plane":     `{"spec": {"data_plane": {"custom": "unknown"}}}`,
		"unknown parts of a policy":         `{"policy": {"base": "unknown", "constraints": {"network": {"allowed_egress": [{"https_hostname": "unknown"}, "unknown"]}, "security": {"runtime_class_mappings": "unknown"}}, "control_plane_access": {"source_ip_allowlist": {"cidrs": ["unknown", "10.0.0.0/8"]}}}}`,
	} {
		t.Run(rule, func(t *testing.T) {
			if found := problems(t, config); len(found) > 0 {
				t.Errorf("%s\nrefused: %q", config, found)
			}
		})
	}
}
