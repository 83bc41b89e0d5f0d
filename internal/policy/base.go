package policy

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// baseFields are the fields of a Pod's spec that policy.base may set, beside
// metadata.
func baseFields() []string {
	return []string{
		"affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks", "imagePullSecrets",
		"metadata", "nodeSelector", "preemptionPolicy", "priorityClassName", "schedulerName", "serviceAccountName",
		"tolerations", "topologySpreadConstraints", "volumes",
	}
}

// baseVolumeSources are the kinds of volume that policy.base may add: none of
// them opens the node.
func baseVolumeSources() []string {
	return []string{"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
}

// baseProblems says what policy.base holds that it may not.
func baseProblems(base *structpb.Struct) []problem {
	var problems []problem
	for _, key := range slices.Sorted(maps.Keys(base.GetFields())) {
		value := base.GetFields()[key]
		switch {
		case !slices.Contains(baseFields(), key):
			problems = append(problems, problem{
				key, "BASE_FIELD",
				"is not a field that base may set; it may set " + strings.Join(baseFields(), ", "),
			})
		case key == "metadata":
			problems = append(problems, metadataProblems(value)...)
		case key == "volumes":
			problems = append(problems, baseVolumeProblems(value)...)
		}
	}
	return problems
}

func metadataProblems(value *structpb.Value) []problem {
	object := value.GetStructValue()
	if object == nil {
		return []problem{{"metadata", "BASE_FIELD", "must be an object"}}
	}
	var problems []problem
	for _, key := range slices.Sorted(maps.Keys(object.GetFields())) {
		if key != "annotations" && key != "labels" {
			problems = append(problems, problem{"metadata." + key, "BASE_FIELD", "is not a field that base may set; it may set annotations and labels"})
			continue
		}
		entries := object.GetFields()[key].GetStructValue()
		if entries == nil {
			problems = append(problems, problem{"metadata." + key, "BASE_FIELD", "must be an object"})
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(entries.GetFields())) {
			if _, ok := entries.GetFields()[name].GetKind().(*structpb.Value_StringValue); !ok {
				problems = append(problems, problem{"metadata." + key + "[" + quote(name) + "]", "BASE_FIELD", "must be a string"})
			}
		}
	}
	return problems
}

func baseVolumeProblems(value *structpb.Value) []problem {
	volumes := value.GetListValue()
	if volumes == nil {
		return []problem{{"volumes", "BASE_FIELD", "must be a list"}}
	}
	var problems []problem
	for i, entry := range volumes.GetValues() {
		for _, key := range slices.Sorted(maps.Keys(entry.GetStructValue().GetFields())) {
			if key != "name" && !slices.Contains(baseVolumeSources(), key) {
				problems = append(problems, problem{
					element("volumes", i) + "." + key, "BASE_FIELD",
					"is not a kind of volume that base may add; it may add " + strings.Join(baseVolumeSources(), ", "),
				})
			}
		}
	}
	return problems
}

// baseAnnotations are those that policy.base adds to every sandbox.
func baseAnnotations(base *structpb.Struct) map[string]string {
	entries := base.GetFields()["metadata"].GetStructValue().GetFields()["annotations"].GetStructValue().GetFields()
	if len(entries) == 0 {
		return nil
	}
	out := make(map[string]string, len(entries))
	for name, value := range entries {
		out[name] = value.GetStringValue()
	}
	return out
}
