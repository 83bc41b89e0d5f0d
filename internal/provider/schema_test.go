package provider

import (
	"slices"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"google.golang.org/protobuf/reflect/protoreflect"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// nestedAttributes are those of an attribute that has some.
func nestedAttributes(attribute schema.Attribute) attributes {
	switch a := attribute.(type) {
	case schema.SingleNestedAttribute:
		return a.Attributes
	case schema.ListNestedAttribute:
		return a.NestedObject.Attributes
	case schema.SetNestedAttribute:
		return a.NestedObject.Attributes
	}
	return nil
}

func TestTheSchemaHasEveryFieldOfTheContractAndNoOther(t *testing.T) {
	bridge := runnerBridge()
	var compare func(where string, members attributes, message protoreflect.MessageDescriptor)
	compare = func(where string, members attributes, message protoreflect.MessageDescriptor) {
		covered := map[protoreflect.FullName]bool{}
		for name, attribute := range members {
			fields := bridge.Field(message, name)
			if fields == nil {
				t.Errorf("%s.%s has no field in %s", where, name, message.FullName())
				continue
			}
			for _, field := range fields {
				covered[field.FullName()] = true
			}
			if nested := nestedAttributes(attribute); nested != nil {
				compare(where+"."+name, nested, fields[len(fields)-1].Message())
			}
		}
		for i := range message.Fields().Len() {
			field := message.Fields().Get(i)
			if !covered[field.FullName()] && !unwritable[field.FullName()] {
				t.Errorf("%s: the contract's field %s has no attribute", where, field.FullName())
			}
		}
	}
	compare("runner", runnerSchema().Attributes, (&sandboxv1.ManagedRunner{}).ProtoReflect().Descriptor())
}

func TestEveryAttributeIsDescribed(t *testing.T) {
	var visit func(where string, members attributes)
	visit = func(where string, members attributes) {
		for name, attribute := range members {
			if attribute.GetMarkdownDescription() == "" {
				t.Errorf("%s.%s has no description", where, name)
			}
			visit(where+"."+name, nestedAttributes(attribute))
		}
	}
	visit("runner", runnerSchema().Attributes)
}

func TestSecretsAreMarkedSensitive(t *testing.T) {
	var sensitive []string
	var visit func(where string, members attributes)
	visit = func(where string, members attributes) {
		for name, attribute := range members {
			if attribute.IsSensitive() {
				sensitive = append(sensitive, where+name)
			}
			visit(where+name+".", nestedAttributes(attribute))
		}
	}
	visit("", runnerSchema().Attributes)
	slices.Sort(sensitive)
	if want := []string{"deployment_spec", "policy.base", "spec.overrides.env"}; !slices.Equal(sensitive, want) {
		t.Errorf("sensitive attributes are %v, want %v", sensitive, want)
	}
}

func TestEveryRootAttributeIsIdentityConfiguredOrObserved(t *testing.T) {
	stable := []string{"id", "runner_id", "cluster_id", "zone", "cluster_name", "create_time"}
	for name := range runnerSchema().Attributes {
		if !slices.Contains(slices.Concat(stable, configured(), observed()), name) {
			t.Errorf("%s is in no list", name)
		}
	}
}
