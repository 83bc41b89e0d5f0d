package bridge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Rules are the exceptions to "same name, same meaning". Keys are full names
// of messages or fields, such as "coreweave.sandbox.v1.RunnerResources.cpu_limit".
type Rules struct {
	// Nested names attributes of a message that live in one of its messages:
	// message, then attribute, then "field.field".
	Nested map[protoreflect.FullName]map[string]string
	// Aliases names older spellings of attributes: message, then old name, then
	// new name. Only the new one is written to the message; the spelling of the
	// prior value is kept when reading.
	Aliases map[protoreflect.FullName]map[string]string
	// Distinct names fields whose absence differs from their zero value.
	Distinct map[protoreflect.FullName]bool
	// Same says of text fields whether two spellings mean the same.
	Same map[protoreflect.FullName]func(a, b string) bool
}

// Bridge converts by Rules. The zero value converts by names alone.
type Bridge struct {
	rules Rules
}

// New makes a Bridge.
func New(rules Rules) Bridge { return Bridge{rules: rules} }

// successor is the new name of an attribute: itself, unless it is an alias.
func (b Bridge) successor(message protoreflect.FullName, attribute string) string {
	if name, ok := b.rules.Aliases[message][attribute]; ok {
		return name
	}
	return attribute
}

// alias is the older name of an attribute; empty when it has none.
func (b Bridge) alias(message protoreflect.FullName, attribute string) string {
	for older, newer := range b.rules.Aliases[message] {
		if newer == attribute {
			return older
		}
	}
	return ""
}

// Field finds the fields that lead from a message to the attribute's field;
// nil when there is none.
func (b Bridge) Field(message protoreflect.MessageDescriptor, attribute string) []protoreflect.FieldDescriptor {
	place := b.successor(message.FullName(), attribute)
	if nested, ok := b.rules.Nested[message.FullName()][place]; ok {
		place = nested
	}
	var fields []protoreflect.FieldDescriptor
	for name := range strings.SplitSeq(place, ".") {
		if message == nil {
			return nil
		}
		field := message.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return nil
		}
		fields = append(fields, field)
		message = field.Message()
	}
	return fields
}

// observed tells whether the server alone sets the field.
func observed(field protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY)
}

// attributes opens an object; a null or unknown one has none.
func attributes(object tftypes.Value) (map[string]tftypes.Value, error) {
	if object.IsNull() || !object.IsKnown() {
		return nil, nil
	}
	var values map[string]tftypes.Value
	if err := object.As(&values); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	return values, nil
}

// given tells whether a value is there to be used.
func given(value tftypes.Value) bool {
	return value.Type() != nil && value.IsKnown() && !value.IsNull()
}
