package fleet

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

const (
	pathDisplayName = "display_name"
	pathGroup       = "identity.runner_group_id"
	pathPolicy      = "policy"
	pathSpecPrefix  = "spec."
)

// allowedPaths are what an update mask may name, in the order of the contract.
func allowedPaths() []string {
	paths := []string{pathDisplayName, pathGroup, pathPolicy}
	fields := (&sandboxv1.ManagedRunnerSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		paths = append(paths, pathSpecPrefix+string(fields.Get(i).Name()))
	}
	return paths
}

// checkMask answers the mask's paths, once each, or what is wrong with it. Paths
// may be spelt as in proto or as in JSON: display_name or displayName.
func checkMask(paths []string) ([]string, []apierr.Violation) {
	allowed := allowedPaths()
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
		return maskViolation("%q cannot be changed; delete the runner and create another, or change only %s", path, pathGroup)
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
		if strings.HasPrefix(path, pathSpecPrefix) {
			paths = append(paths, path)
		}
	}
	return paths
}

func maskViolation(format string, args ...any) apierr.Violation {
	return apierr.Violated("update_mask", "UPDATE_MASK", format, args...)
}

// selected is the runner with only the fields that the mask names.
func selected(runner *sandboxv1.ManagedRunner, paths []string) *sandboxv1.ManagedRunner {
	out := &sandboxv1.ManagedRunner{}
	for _, path := range paths {
		switch path {
		case pathDisplayName:
			out.DisplayName = runner.GetDisplayName()
		case pathGroup:
			out.Identity = &sandboxv1.RunnerIdentity{RunnerGroupId: runner.GetIdentity().GetRunnerGroupId()}
		case pathPolicy:
			out.Policy = runner.GetPolicy()
		default:
			if out.Spec == nil {
				out.Spec = &sandboxv1.ManagedRunnerSpec{}
			}
			copyField(runner.GetSpec(), out.Spec, specField(path))
		}
	}
	return out
}

// copyField makes a field of to what it is in from, absence included.
func copyField(from, to *sandboxv1.ManagedRunnerSpec, field protoreflect.FieldDescriptor) {
	if !from.ProtoReflect().Has(field) {
		to.ProtoReflect().Clear(field)
		return
	}
	source := from
	if field.Message() != nil {
		source = proto.Clone(from).(*sandboxv1.ManagedRunnerSpec)
	}
	to.ProtoReflect().Set(field, source.ProtoReflect().Get(field))
}

func specField(path string) protoreflect.FieldDescriptor {
	fields := (&sandboxv1.ManagedRunnerSpec{}).ProtoReflect().Descriptor().Fields()
	return fields.ByName(protoreflect.Name(strings.TrimPrefix(path, pathSpecPrefix)))
}
