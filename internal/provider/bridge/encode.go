package bridge

import (
	"bytes"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Encode writes a Terraform object into message. Null and unknown attributes
// leave their fields as they are, and so do attributes that only the server
// sets. Sets are written in one order, so that equal objects make equal
// messages.
func (b Bridge) Encode(object tftypes.Value, message protoreflect.Message) error {
	values, err := attributes(object)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !given(values[name]) {
			continue
		}
		fields := b.Field(message.Descriptor(), name)
		if fields == nil {
			return fmt.Errorf("%s: %s has no such field", name, message.Descriptor().FullName())
		}
		holder, field := message, fields[len(fields)-1]
		if observed(field) {
			continue
		}
		for _, step := range fields[:len(fields)-1] {
			holder = holder.Mutable(step).Message()
		}
		if err := b.encodeField(values[name], holder, field); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b Bridge) encodeField(value tftypes.Value, message protoreflect.Message, field protoreflect.FieldDescriptor) error {
	switch {
	case field.IsMap():
		return b.encodeMap(value, message, field)
	case field.IsList():
		return b.encodeList(value, message, field)
	}
	encoded, err := b.encodeSingle(value, field)
	if err != nil || !encoded.IsValid() {
		return err
	}
	message.Set(field, encoded)
	return nil
}

func (b Bridge) encodeMap(value tftypes.Value, message protoreflect.Message, field protoreflect.FieldDescriptor) error {
	var entries map[string]tftypes.Value
	if err := value.As(&entries); err != nil {
		return err
	}
	for key, entry := range entries {
		encoded, err := b.encodeSingle(entry, field.MapValue())
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		message.Mutable(field).Map().Set(protoreflect.ValueOfString(key).MapKey(), encoded)
	}
	return nil
}

func (b Bridge) encodeList(value tftypes.Value, message protoreflect.Message, field protoreflect.FieldDescriptor) error {
	var elements []tftypes.Value
	if err := value.As(&elements); err != nil {
		return err
	}
	encoded := make([]protoreflect.Value, 0, len(elements))
	for i, element := range elements {
		one, err := b.encodeSingle(element, field)
		if err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
		encoded = append(encoded, one)
	}
	if value.Type().Is(tftypes.Set{}) {
		slices.SortFunc(encoded, compare)
	}
	for _, one := range encoded {
		message.Mutable(field).List().Append(one)
	}
	return nil
}

// compare orders the elements of a set.
func compare(a, b protoreflect.Value) int {
	switch x := a.Interface().(type) {
	case string:
		return strings.Compare(x, b.String())
	case protoreflect.EnumNumber:
		return int(x) - int(b.Enum())
	case protoreflect.Message:
		return bytes.Compare(wire(x), wire(b.Message()))
	}
	return 0
}

func wire(message protoreflect.Message) []byte {
	// Marshalling fails only for invalid UTF-8, which Terraform never holds.
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message.Interface())
	return raw
}

// encodeSingle converts one value; the answer is not valid when the field has
// to stay absent.
func (b Bridge) encodeSingle(value tftypes.Value, field protoreflect.FieldDescriptor) (protoreflect.Value, error) {
	var none protoreflect.Value
	switch field.Kind() {
	case protoreflect.MessageKind:
		return b.encodeMessage(value, field.Message())
	case protoreflect.BoolKind:
		var flag bool
		err := value.As(&flag)
		return protoreflect.ValueOfBool(flag), err
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		var number big.Float
		if err := value.As(&number); err != nil {
			return none, err
		}
		whole, accuracy := number.Int64()
		if accuracy != big.Exact {
			return none, fmt.Errorf("%s is not a whole number of 64 bits", number.String())
		}
		if field.Kind() == protoreflect.Int64Kind {
			return protoreflect.ValueOfInt64(whole), nil
		}
		if whole != int64(int32(whole)) {
			return none, fmt.Errorf("%d does not fit into 32 bits", whole)
		}
		return protoreflect.ValueOfInt32(int32(whole)), nil
	case protoreflect.EnumKind, protoreflect.StringKind:
		var text string
		if err := value.As(&text); err != nil {
			return none, err
		}
		if field.Kind() == protoreflect.StringKind {
			return protoreflect.ValueOfString(text), nil
		}
		name := field.Enum().Values().ByName(protoreflect.Name(text))
		if name == nil {
			return none, fmt.Errorf("%q is not a value of %s", text, field.Enum().Name())
		}
		return protoreflect.ValueOfEnum(name.Number()), nil
	default:
		return none, fmt.Errorf("fields of kind %s are not supported", field.Kind())
	}
}

func (b Bridge) encodeMessage(value tftypes.Value, descriptor protoreflect.MessageDescriptor) (protoreflect.Value, error) {
	var none protoreflect.Value
	message := newMessage(descriptor)
	switch {
	case value.Type().Is(tftypes.Bool):
		var selected bool
		if err := value.As(&selected); err != nil || !selected {
			return none, err
		}
	case value.Type().Is(tftypes.String):
		var text string
		if err := value.As(&text); err != nil {
			return none, err
		}
		parsed, err := parseText(text, descriptor)
		if err != nil {
			return none, err
		}
		message = parsed
	default:
		if err := b.Encode(value, message); err != nil {
			return none, err
		}
	}
	return protoreflect.ValueOfMessage(message), nil
}

// parseText reads the messages that Terraform holds as text: times and JSON.
func parseText(text string, descriptor protoreflect.MessageDescriptor) (protoreflect.Message, error) {
	switch descriptor.FullName() {
	case "google.protobuf.Timestamp":
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an RFC 3339 time", text)
		}
		return timestamppb.New(at).ProtoReflect(), nil
	case "google.protobuf.Struct":
		object := &structpb.Struct{}
		if err := protojson.Unmarshal([]byte(text), object); err != nil {
			return nil, fmt.Errorf("not a JSON object: %w", err)
		}
		return object.ProtoReflect(), nil
	}
	return nil, fmt.Errorf("%s is only read", descriptor.FullName())
}
