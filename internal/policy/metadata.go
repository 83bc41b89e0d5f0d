package policy

import (
	"maps"
	"slices"
	"strings"
)

// metadataRules are policy.constraints.metadata.
type metadataRules struct {
	deniedPrefixes []string
	// maxCount is 0 where there is no limit.
	maxCount int64
}

// annotations checks the sandbox's annotations together with those that the
// policy's base adds.
func (r *resolver) annotations(declared map[string]string) {
	const field = "spec.annotations"
	if _, ok := declared[""]; ok {
		r.refused.add(invalid, field, "EMPTY_KEY", "a key must not be empty")
	}
	rules := r.policy.metadata
	if denied := rules.denied(declared); denied != nil {
		for _, key := range slices.Sorted(maps.Keys(denied)) {
			r.refused.add(outsidePolicy, field+"["+quote(key)+"]", "DENIED_ANNOTATION_PREFIX",
				"the policy denies keys that begin with %q (policy.constraints.metadata.denied_annotation_prefixes); leave the annotation out", denied[key])
		}
	}
	count := int64(len(declared))
	for key := range r.policy.baseAnnotations {
		if _, ok := declared[key]; !ok {
			count++
		}
	}
	if rules.maxCount > 0 && count > rules.maxCount {
		r.refused.add(outsidePolicy, field, "MAX_ANNOTATION_COUNT",
			"%d annotations, those of the policy's base included, are more than the policy's maximum of %d (policy.constraints.metadata.max_annotation_count); leave some out",
			count, rules.maxCount)
	}
}

// denied maps each key that is denied to the prefix that denies it; nil when
// none is.
func (m metadataRules) denied(annotations map[string]string) map[string]string {
	var denied map[string]string
	for key := range annotations {
		for _, prefix := range m.deniedPrefixes {
			if strings.HasPrefix(key, prefix) {
				if denied == nil {
					denied = map[string]string{}
				}
				denied[key] = prefix
				break
			}
		}
	}
	return denied
}
