package bridge

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Decode makes a Terraform object of that type from message. prior is the
// object that was planned or stored before, of the same type; null or unknown
// when there is none.
func (b Bridge) Decode(message protoreflect.Message, object tftypes.Object, prior tftypes.Value) (tftypes.Value, error) {
	var none tftypes.Value
	before, err := attributes(prior)
	if err != nil {
		return none, err
	}
	values := make(map[string]tftypes.Value, len(object.AttributeTypes))
	for name, kind := range object.AttributeTypes {
		null := tftypes.NewValue(kind, nil)
		if b.spelledOtherwise(message.Descriptor().FullName(), name, before) {
			values[name] = null
			continue
		}
		earlier, ok := before[name]
		if !ok {
			earlier = null
		}
		holder, field, err := b.find(message, name)
		if err != nil {
			return none, err
		}
		value, err := b.decodeField(holder, field, kind, earlier)
		if err != nil {
			return none, fmt.Errorf("%s: %w", name, err)
		}
		values[name] = value
	}
	return tftypes.NewValue(object, values), nil
}

// spelledOtherwise tells whether the field of this attribute is reported under
// its other name: the alias when the prior object used it, else the new name.
func (b Bridge) spelledOtherwise(message protoreflect.FullName, attribute string, before map[string]tftypes.Value) bool {
	if b.successor(message, attribute) != attribute {
		return !given(before[attribute])
	}
	return given(before[b.alias(message, attribute)])
}

// find locates the attribute's field. A server that still uses the older name
// of a field is understood.
func (b Bridge) find(message protoreflect.Message, attribute string) (protoreflect.Message, protoreflect.FieldDescriptor, error) {
	fields := b.Field(message.Descriptor(), attribute)
	if fields == nil {
		return nil, nil, fmt.Errorf("%s: %s has no such field", attribute, message.Descriptor().FullName())
	}
	for _, step := range fields[:len(fields)-1] {
		message = message.Get(step).Message()
	}
	field := fields[len(fields)-1]
	if older := message.Descriptor().Fields().ByName(protoreflect.Name(b.alias(message.Descriptor().FullName(), string(field.Name())))); older != nil {
		if !message.Has(field) && message.Has(older) {
			field = older
		}
	}
	return message, field, nil
}

func (b Bridge) decodeField(message protoreflect.Message, field protoreflect.FieldDescriptor, kind tftypes.Type, prior tftypes.Value) (tftypes.Value, error) {
	switch {
	case field.IsMap():
		return b.decodeMap(message.Get(field).Map(), field, kind, prior)
	case field.IsList():
		return b.decodeList(message.Get(field).List(), field, kind, prior)
	case field.Kind() == protoreflect.MessageKind:
		if !message.Has(field) {
			return tftypes.NewValue(kind, nil), nil
		}
		return b.decodeMessage(message.Get(field).Message(), kind, prior)
	}
	value := b.scalar(message.Get(field), field, kind)
	switch {
	case value.IsNull():
		return value, nil
	case !isZero(value):
		return b.keepSpelling(value, field, prior), nil
	case field.HasPresence() && message.Has(field), observed(field) && !kind.Is(tftypes.String):
		return value, nil
	case given(prior) && prior.Equal(value) && !b.rules.Distinct[field.FullName()]:
		return prior, nil
	}
	return tftypes.NewValue(kind, nil), nil
}

func (b Bridge) decodeMap(entries protoreflect.Map, field protoreflect.FieldDescriptor, kind tftypes.Type, prior tftypes.Value) (tftypes.Value, error) {
	if entries.Len() == 0 {
		return emptyLike(kind, prior, map[string]tftypes.Value{}), nil
	}
	element := kind.(tftypes.Map).ElementType
	values := make(map[string]tftypes.Value, entries.Len())
	entries.Range(func(key protoreflect.MapKey, entry protoreflect.Value) bool {
		values[key.String()] = b.scalar(entry, field.MapValue(), element)
		return true
	})
	return tftypes.NewValue(kind, values), nil
}

func (b Bridge) decodeList(elements protoreflect.List, field protoreflect.FieldDescriptor, kind tftypes.Type, prior tftypes.Value) (tftypes.Value, error) {
	if elements.Len() == 0 {
		return emptyLike(kind, prior, []tftypes.Value{}), nil
	}
	var element tftypes.Type
	var before []tftypes.Value
	switch k := kind.(type) {
	case tftypes.List:
		element = k.ElementType
		if given(prior) {
			if err := prior.As(&before); err != nil {
				return tftypes.Value{}, err
			}
		}
	case tftypes.Set:
		element = k.ElementType
	}
	values := make([]tftypes.Value, elements.Len())
	for i := range values {
		earlier := tftypes.NewValue(element, nil)
		if i < len(before) {
			earlier = before[i]
		}
		if field.Kind() != protoreflect.MessageKind {
			values[i] = b.scalar(elements.Get(i), field, element)
			continue
		}
		value, err := b.decodeMessage(elements.Get(i).Message(), element, earlier)
		if err != nil {
			return tftypes.Value{}, fmt.Errorf("%d: %w", i, err)
		}
		values[i] = value
	}
	if kind.Is(tftypes.Set{}) {
		values = distinct(values)
	}
	return tftypes.NewValue(kind, values), nil
}

// distinct drops repeated elements, which a Terraform set must not have.
func distinct(values []tftypes.Value) []tftypes.Value {
	var kept []tftypes.Value
	for _, value := range values {
		if !slices.ContainsFunc(kept, value.Equal) {
			kept = append(kept, value)
		}
	}
	return kept
}

// emptyLike keeps a collection that was written as empty; otherwise it is null.
func emptyLike(kind tftypes.Type, prior tftypes.Value, empty any) tftypes.Value {
	value := tftypes.NewValue(kind, empty)
	if given(prior) && prior.Equal(value) {
		return value
	}
	return tftypes.NewValue(kind, nil)
}

func (b Bridge) decodeMessage(message protoreflect.Message, kind tftypes.Type, prior tftypes.Value) (tftypes.Value, error) {
	switch {
	case kind.Is(tftypes.Bool):
		return tftypes.NewValue(kind, true), nil
	case kind.Is(tftypes.String):
		if given(prior) {
			var text string
			if err := prior.As(&text); err != nil {
				return tftypes.Value{}, err
			}
			if parsed, err := parseText(text, message.Descriptor()); err == nil && proto.Equal(parsed.Interface(), message.Interface()) {
				return prior, nil
			}
		}
		text, err := formatText(message)
		return tftypes.NewValue(kind, text), err
	}
	object, ok := kind.(tftypes.Object)
	if !ok {
		return tftypes.Value{}, fmt.Errorf("%s cannot be held as %s", message.Descriptor().FullName(), kind)
	}
	return b.Decode(message, object, prior)
}

// formatText writes the messages that Terraform holds as text: times in RFC
// 3339, all others as JSON with the names of the contract.
func formatText(message protoreflect.Message) (string, error) {
	if at, ok := message.Interface().(*timestamppb.Timestamp); ok {
		return at.AsTime().Format(time.RFC3339Nano), nil
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message.Interface())
	if err != nil {
		return "", fmt.Errorf("write %s: %w", message.Descriptor().FullName(), err)
	}
	// protojson varies its white space on purpose; a plan needs stable text, in
	// the form that Terraform's jsonencode gives.
	var document any
	if err := json.Unmarshal(raw, &document); err != nil {
		return "", fmt.Errorf("read %s again: %w", message.Descriptor().FullName(), err)
	}
	stable, err := json.Marshal(document)
	return string(stable), err
}

// scalar converts one value that is no message; an enum's zero is null.
func (b Bridge) scalar(value protoreflect.Value, field protoreflect.FieldDescriptor, kind tftypes.Type) tftypes.Value {
	switch field.Kind() {
	case protoreflect.EnumKind:
		number := value.Enum()
		if number == 0 {
			return tftypes.NewValue(kind, nil)
		}
		if known := field.Enum().Values().ByNumber(number); known != nil {
			return tftypes.NewValue(kind, string(known.Name()))
		}
		return tftypes.NewValue(kind, strconv.Itoa(int(number)))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return tftypes.NewValue(kind, new(big.Float).SetInt64(value.Int()))
	default:
		return tftypes.NewValue(kind, value.Interface())
	}
}

func isZero(value tftypes.Value) bool {
	switch {
	case value.Type().Is(tftypes.Bool):
		return value.Equal(tftypes.NewValue(tftypes.Bool, false))
	case value.Type().Is(tftypes.Number):
		return value.Equal(tftypes.NewValue(tftypes.Number, 0))
	default:
		return value.Equal(tftypes.NewValue(tftypes.String, ""))
	}
}

func (b Bridge) keepSpelling(value tftypes.Value, field protoreflect.FieldDescriptor, prior tftypes.Value) tftypes.Value {
	same, ok := b.rules.Same[field.FullName()]
	if !ok || !given(prior) {
		return value
	}
	var now, before string
	if value.As(&now) == nil && prior.As(&before) == nil && same(now, before) {
		return prior
	}
	return value
}

// newMessage makes an empty message of a descriptor, of its generated type
// where there is one.
func newMessage(descriptor protoreflect.MessageDescriptor) protoreflect.Message {
	if known, err := protoregistry.GlobalTypes.FindMessageByName(descriptor.FullName()); err == nil {
		return known.New()
	}
	return dynamicpb.NewMessage(descriptor)
}
