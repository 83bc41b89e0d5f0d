package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// parseMask reads the text form of a field mask, paths separated by commas, and
// leaves the paths as they are written. Protobuf's JSON refuses what is not
// lowerCamelCase, "*" included, before the service that knows the paths can say
// which there are.
func parseMask(text string) *fieldmaskpb.FieldMask {
	mask := &fieldmaskpb.FieldMask{}
	if text == "" {
		return mask
	}
	for path := range strings.SplitSeq(text, ",") {
		mask.Paths = append(mask.Paths, strings.TrimSpace(path))
	}
	return mask
}

func isMask(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && !field.IsList() && !field.IsMap() &&
		field.Message().FullName() == (&fieldmaskpb.FieldMask{}).ProtoReflect().Descriptor().FullName()
}

// unmarshalJSON is protobuf's, but for masks.
func unmarshalJSON(data []byte, message proto.Message) error {
	fields := message.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if field := fields.Get(i); isMask(field) {
			return unmarshalMasked(data, message, field)
		}
	}
	return protojson.Unmarshal(data, message)
}

func unmarshalMasked(data []byte, message proto.Message, field protoreflect.FieldDescriptor) error {
	rest, text, err := takeOut(data, field)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(rest, message); err != nil {
		return err
	}
	if text != nil {
		message.ProtoReflect().Set(field, protoreflect.ValueOfMessage(parseMask(*text).ProtoReflect()))
	}
	return nil
}

// takeOut splits a JSON object into all but the field, and the field's text;
// nil when it is absent or null. What is no JSON object comes back whole, for
// protobuf to say what is wrong with it.
func takeOut(data []byte, field protoreflect.FieldDescriptor) (rest []byte, text *string, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return data, nil, nil //nolint:nilerr // Protobuf says it better.
	}
	out := bytes.NewBufferString("{")
	found := false
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return data, nil, nil //nolint:nilerr // As above.
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return data, nil, nil //nolint:nilerr // As above.
		}
		key, _ := token.(string) // A key is a string.
		if key != field.JSONName() && key != string(field.Name()) {
			writePair(out, key, value)
			continue
		}
		if found {
			return nil, nil, fmt.Errorf("field %q is there twice", field.JSONName())
		}
		found = true
		if err := json.Unmarshal(value, &text); err != nil {
			return nil, nil, fmt.Errorf("field %q is not a string of paths, separated by commas", field.JSONName())
		}
	}
	if _, err := decoder.Token(); err != nil || decoder.InputOffset() < int64(len(bytes.TrimRight(data, " \t\r\n"))) {
		return nil, nil, errors.New("the JSON object does not end where the body does")
	}
	out.WriteByte('}')
	return out.Bytes(), text, nil
}

func writePair(out *bytes.Buffer, key string, value []byte) {
	if out.Len() > len("{") {
		out.WriteByte(',')
	}
	// A string always encodes.
	name, _ := json.Marshal(key)
	out.Write(name)
	out.WriteByte(':')
	out.Write(value)
}
