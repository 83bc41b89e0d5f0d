package managedrunner

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// What an update mask may name, beside the fields of the spec, each of which
// follows PathSpecPrefix.
const (
	PathDisplayName = "display_name"
	PathGroup       = "identity.runner_group_id"
	PathPolicy      = "policy"
	PathSpecPrefix  = "spec."
)

// DefaultGroup is the group of a runner that is given none.
const DefaultGroup = "default"

// Paths are what an update mask may name, in the order of the contract.
func Paths() []string {
	paths := []string{PathDisplayName, PathGroup, PathPolicy}
	fields := (&sandboxv1.ManagedRunnerSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		paths = append(paths, PathSpecPrefix+string(fields.Get(i).Name()))
	}
	return paths
}

// CheckMask answers the mask's paths, once each and spelt as in proto, or what is
// wrong with it. Paths may be spelt as in proto or as in JSON: display_name or
// displayName.
func CheckMask(paths []string) ([]string, []apierr.Violation) {
	allowed := Paths()
	if len(paths) == 0 {
		return nil, []apierr.Violation{maskViolation("must name the fields to change: %s", strings.Join(allowed, ", "))}
	}
	var (
		checked    []string
		violations []apierr.Violation
	)
	for _, path := range paths {
		field := protoSpelling(path)
		if !slices.Contains(allowed, field) {
			violations = append(violations, refusedPath(path, field, allowed))
			continue
		}
		if !slices.Contains(checked, field) {
			checked = append(checked, field)
		}
	}
	return checked, violations
}

// protoSpelling turns the JSON spelling of a path, displayName, into that of
// proto, display_name, which it leaves as it is.
func protoSpelling(path string) string {
	var out strings.Builder
	for _, r := range path {
		if 'A' <= r && r <= 'Z' {
			out.WriteByte('_')
			r += 'a' - 'A'
		}
		out.WriteRune(r)
	}
	return out.String()
}

// refusedPath says why a path, whose proto spelling is field, is refused, and
// names the nearest allowed one.
func refusedPath(path, field string, allowed []string) apierr.Violation {
	switch field {
	case "*":
		return maskViolation("\"*\" is not allowed; name the fields to change: %s", strings.Join(allowed, ", "))
	case "spec":
		return maskViolation("\"spec\" is too wide; name the fields in it: %s", strings.Join(specPaths(allowed), ", "))
	case "identity", "identity.runner_id", "identity.zone", "identity.cluster_id":
		return maskViolation("%q cannot be changed; delete the runner and create another, or change only %s", path, PathGroup)
	}
	for _, candidate := range allowed {
		if strings.HasPrefix(field, candidate+".") {
			return maskViolation("%q is too deep; %q is replaced as a whole, so use %q and send all of it", path, candidate, candidate)
		}
	}
	return maskViolation("%q is not a field that can be changed; allowed are %s", path, strings.Join(allowed, ", "))
}

func specPaths(allowed []string) (paths []string) {
	for _, path := range allowed {
		if strings.HasPrefix(path, PathSpecPrefix) {
			paths = append(paths, path)
		}
	}
	return paths
}

func maskViolation(format string, args ...any) apierr.Violation {
	return apierr.Violated("update_mask", "UPDATE_MASK", format, args...)
}

// Selected is a runner with only the fields that the paths name.
func Selected(runner *sandboxv1.ManagedRunner, paths []string) *sandboxv1.ManagedRunner {
	out := &sandboxv1.ManagedRunner{}
	Apply(out, runner, paths)
	return out
}

// Apply makes the fields of runner that the paths name what they are in body;
// those that body leaves out become absent. Paths are such as CheckMask answers
// with. Nothing of body is shared with runner afterwards.
func Apply(runner, body *sandboxv1.ManagedRunner, paths []string) {
	for _, path := range paths {
		switch path {
		case PathDisplayName:
			runner.DisplayName = body.GetDisplayName()
		case PathGroup:
			if runner.Identity == nil {
				runner.Identity = &sandboxv1.RunnerIdentity{}
			}
			runner.Identity.RunnerGroupId = body.GetIdentity().GetRunnerGroupId()
		case PathPolicy:
			runner.Policy = proto.CloneOf(body.GetPolicy())
		default:
			if runner.Spec == nil {
				runner.Spec = &sandboxv1.ManagedRunnerSpec{}
			}
			copyField(runner.Spec, body.GetSpec(), specField(path))
		}
	}
}

// copyField makes a field of to what it is in from, absence included.
func copyField(to, from *sandboxv1.ManagedRunnerSpec, field protoreflect.FieldDescriptor) {
	if !from.ProtoReflect().Has(field) {
		to.ProtoReflect().Clear(field)
		return
	}
	if field.Message() != nil {
		from = proto.CloneOf(from)
	}
	to.ProtoReflect().Set(field, from.ProtoReflect().Get(field))
}

func specField(path string) protoreflect.FieldDescriptor {
	fields := (&sandboxv1.ManagedRunnerSpec{}).ProtoReflect().Descriptor().Fields()
	return fields.ByName(protoreflect.Name(strings.TrimPrefix(path, PathSpecPrefix)))
}

// Changes are the paths of the fields in which two runners differ, sorted: the
// mask of the update that makes the one into the other. A field that is absent
// differs from one that is there and empty.
func Changes(before, after *sandboxv1.ManagedRunner) []string {
	var paths []string
	for _, path := range Paths() {
		if !proto.Equal(Selected(before, []string{path}), Selected(after, []string{path})) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// FillDefaults gives a runner what it has when nothing is declared: the default
// group and the stable channel.
func FillDefaults(runner *sandboxv1.ManagedRunner) {
	if runner.GetIdentity().GetRunnerGroupId() == "" {
		if runner.Identity == nil {
			runner.Identity = &sandboxv1.RunnerIdentity{}
		}
		runner.Identity.RunnerGroupId = DefaultGroup
	}
	if runner.Spec == nil {
		runner.Spec = &sandboxv1.ManagedRunnerSpec{}
	}
	if runner.Spec.ReleaseChannel == sandboxv1.ReleaseChannel_RELEASE_CHANNEL_UNSPECIFIED {
		runner.Spec.ReleaseChannel = sandboxv1.ReleaseChannel_RELEASE_CHANNEL_STABLE
	}
}
