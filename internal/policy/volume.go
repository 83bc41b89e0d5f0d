package policy

import (
	"math/big"
	"slices"
	"strconv"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// volumeRules are policy.constraints.volumes, parsed.
type volumeRules struct {
	// media that are allowed; empty: any.
	media []sandboxv1.StorageMedium
	// largest is per volume.
	largest bound
}

// volumes resolves and checks the scratch volumes, and adds up those that are
// in memory. memoryRequest is the sandbox's, in bytes.
func (r *resolver) volumes(specs []*sandboxv1.SandboxVolume, memoryRequest int64) (volumes []Volume, inMemory int64) {
	for i, spec := range specs {
		scratch := spec.GetScratch()
		if scratch == nil {
			continue
		}
		volume := r.volume(i, scratch, memoryRequest)
		volume.Name = spec.GetName()
		volumes = append(volumes, volume)
		if volume.Medium == sandboxv1.StorageMedium_STORAGE_MEDIUM_MEMORY {
			inMemory = addSaturating(inMemory, volume.SizeBytes)
		}
	}
	return volumes, inMemory
}

func (r *resolver) volume(index int, spec *sandboxv1.ScratchVolume, memoryRequest int64) Volume {
	at := func(name string) string { return element("spec.volumes", index) + ".scratch." + name }
	rules := &r.policy.volumes

	out := Volume{Medium: spec.GetMedium()}
	switch out.Medium {
	case sandboxv1.StorageMedium_STORAGE_MEDIUM_UNSPECIFIED:
		out.Medium = sandboxv1.StorageMedium_STORAGE_MEDIUM_DISK
	case sandboxv1.StorageMedium_STORAGE_MEDIUM_DISK, sandboxv1.StorageMedium_STORAGE_MEDIUM_MEMORY:
	default:
		r.refused.add(invalid, at("medium"), "INVALID_MEDIUM", "%s is not a medium; use STORAGE_MEDIUM_DISK or STORAGE_MEDIUM_MEMORY", out.Medium)
		return out
	}
	if len(rules.media) > 0 && !slices.Contains(rules.media, out.Medium) {
		r.refused.add(outsidePolicy, at("medium"), "ALLOWED_MEDIA",
			"%s is not among the media that the policy allows for volumes (policy.constraints.volumes.allowed_media)", out.Medium)
	}

	text, inMemory := spec.GetSize(), out.Medium == sandboxv1.StorageMedium_STORAGE_MEDIUM_MEMORY
	var problem string
	switch {
	case text == "" && inMemory:
		problem = `is required for a volume in memory; write a quantity such as "256Mi", or a part of the sandbox's memory such as "25%"`
	case text == "":
		// A volume that declares no size is as large as the policy lets it be.
		out.SizeBytes = rules.largest.amount
		return out
	case strings.HasSuffix(text, "%") && !inMemory:
		problem = quote(text) + " is possible only for a volume in memory; write a quantity"
	case strings.HasSuffix(text, "%"):
		out.SizeBytes, problem = percentOf(text, memoryRequest)
	default:
		if out.SizeBytes, problem = memory.parse(text); problem != "" {
			problem = quote(text) + " " + problem
		}
	}
	if problem != "" {
		r.refused.add(invalid, at("size"), "INVALID_SIZE", "%s", problem)
		return out
	}
	if most := rules.largest; most.set() && out.SizeBytes > most.amount {
		r.refused.add(outsidePolicy, at("size"), "MAX_SIZE",
			"%q (%s) is more than the policy's maximum of %q for a volume (policy.constraints.volumes.max_size); ask for at most that",
			text, memory.format(out.SizeBytes), most.text)
	}
	return out
}

// percentOf is a whole percentage, 1 to 100, of a number of bytes, rounded down
// but never to nothing.
func percentOf(text string, whole int64) (bytes int64, problem string) {
	digits := strings.TrimSuffix(text, "%")
	percent, err := strconv.ParseUint(digits, 10, 8)
	if err != nil || percent < 1 || percent > 100 || strconv.FormatUint(percent, 10) != digits {
		return 0, quote(text) + ` must be "1%" to "100%", a whole number`
	}
	product := new(big.Int).Mul(big.NewInt(whole), big.NewInt(int64(percent)))
	return max(product.Div(product, big.NewInt(100)).Int64(), 1), ""
}
