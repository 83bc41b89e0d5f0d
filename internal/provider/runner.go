package provider

import (
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/provider/bridge"
)

// translation is the bridge for one runner, of one Terraform type.
type translation struct {
	bridge bridge.Bridge
	object tftypes.Object
}

// runner is the message that an object asks for; what the server alone sets is
// left out.
func (t translation) runner(object tftypes.Value) (*sandboxv1.ManagedRunner, error) {
	message := &sandboxv1.ManagedRunner{}
	if err := t.bridge.Encode(object, message.ProtoReflect()); err != nil {
		return nil, err
	}
	message.Etag = ""
	return message, nil
}

// stored is what is kept of a runner that was read. prior is the state so far.
func (t translation) stored(message *sandboxv1.ManagedRunner, prior tftypes.Value) (tftypes.Value, error) {
	return t.bridge.Decode(message.ProtoReflect(), t.object, prior)
}

// applied is what is kept of a runner after a plan was carried out: what was
// planned, and what the server says where the plan left it open. It also names
// the planned attributes of which the server now holds something else.
func (t translation) applied(message *sandboxv1.ManagedRunner, plan tftypes.Value) (tftypes.Value, []string, error) {
	decoded, err := t.stored(message, plan)
	if err != nil {
		return tftypes.Value{}, nil, err
	}
	state, err := fill(plan, decoded)
	if err != nil {
		return tftypes.Value{}, nil, err
	}
	var differing []string
	for _, name := range configured() {
		if !child(state, name).Equal(child(decoded, name)) {
			differing = append(differing, name)
		}
	}
	return state, differing, nil
}

// fill replaces what is unknown in plan by what is found at the same place.
func fill(plan, found tftypes.Value) (tftypes.Value, error) {
	return tftypes.Transform(plan, func(at *tftypes.AttributePath, value tftypes.Value) (tftypes.Value, error) {
		if value.IsKnown() {
			return value, nil
		}
		// What is not found is inside an object that the server left out.
		if there, _, err := tftypes.WalkAttributePath(found, at); err == nil {
			if known, ok := there.(tftypes.Value); ok {
				return known, nil
			}
		}
		return tftypes.NewValue(value.Type(), nil), nil
	})
}

// child is an attribute of an object that is known.
func child(object tftypes.Value, name string) tftypes.Value {
	var values map[string]tftypes.Value
	if object.IsNull() || !object.IsKnown() || object.As(&values) != nil {
		return tftypes.Value{}
	}
	return values[name]
}

// withChildren is a copy of object with some attributes replaced.
func withChildren(object tftypes.Value, replaced map[string]tftypes.Value) (tftypes.Value, error) {
	var values map[string]tftypes.Value
	if err := object.As(&values); err != nil {
		return object, err
	}
	for name, value := range replaced {
		values[name] = value
	}
	return tftypes.NewValue(object.Type(), values), nil
}

// updateMask names the fields in which the planned runner differs from the
// stored one, sorted. An unknown spec differs in nothing.
func updateMask(stored, planned *sandboxv1.ManagedRunner, specKnown bool) []string {
	var paths []string
	if stored.GetDisplayName() != planned.GetDisplayName() {
		paths = append(paths, "display_name")
	}
	if stored.GetIdentity().GetRunnerGroupId() != planned.GetIdentity().GetRunnerGroupId() {
		paths = append(paths, "identity.runner_group_id")
	}
	if !proto.Equal(stored.GetPolicy(), planned.GetPolicy()) {
		paths = append(paths, policyPath)
	}
	if specKnown {
		before, after := stored.GetSpec().ProtoReflect(), planned.GetSpec().ProtoReflect()
		fields := before.Descriptor().Fields()
		for i := range fields.Len() {
			if !sameField(before, after, fields.Get(i)) {
				paths = append(paths, "spec."+string(fields.Get(i).Name()))
			}
		}
	}
	slices.Sort(paths)
	return paths
}

const policyPath = "policy"

func sameField(a, b protoreflect.Message, field protoreflect.FieldDescriptor) bool {
	return a.Has(field) == b.Has(field) && a.Get(field).Equal(b.Get(field))
}
