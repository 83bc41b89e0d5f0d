package server

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// binding is how a method is called through REST.
type binding struct {
	method protoreflect.MethodDescriptor
	rule   *annotations.HttpRule
	// parameters are the fields of the request that the query may hold: those
	// that are in neither the path nor the body.
	parameters []protoreflect.FieldDescriptor
}

// bindings are those of a service by procedure.
func bindings(service string) (map[string]*binding, error) {
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("find service %s: %w", service, err)
	}
	descriptor, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a service", service)
	}
	out := map[string]*binding{}
	for i := range descriptor.Methods().Len() {
		method := descriptor.Methods().Get(i)
		if b := bindingOf(method); b != nil {
			out[fmt.Sprintf("/%s/%s", service, method.Name())] = b
		}
	}
	return out, nil
}

// bindingOf answers with nil for a method that REST does not have.
func bindingOf(method protoreflect.MethodDescriptor) *binding {
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule.GetPattern() == nil {
		return nil
	}
	b := &binding{method: method, rule: rule}
	fields := method.Input().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		name := string(field.Name())
		if rule.GetBody() != "*" && rule.GetBody() != name && !strings.Contains(b.path(), "{"+name+"}") && canBeParameter(field) {
			b.parameters = append(b.parameters, field)
		}
	}
	return b
}

func (b *binding) path() string {
	switch pattern := b.rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return pattern.Get
	case *annotations.HttpRule_Put:
		return pattern.Put
	case *annotations.HttpRule_Post:
		return pattern.Post
	case *annotations.HttpRule_Delete:
		return pattern.Delete
	case *annotations.HttpRule_Patch:
		return pattern.Patch
	}
	return ""
}

// canBeParameter: the query holds what is written as one word.
func canBeParameter(field protoreflect.FieldDescriptor) bool {
	return !field.IsMap() && (field.Message() == nil || isMask(field) || isTimestamp(field))
}

func isTimestamp(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && field.Message().FullName() == (&timestamppb.Timestamp{}).ProtoReflect().Descriptor().FullName()
}

// decode makes a request of what the query holds, or says all that is wrong
// with it.
func (b *binding) decode(query url.Values, request protoreflect.Message) error {
	var wrong []apierr.Violation
	given := map[protoreflect.FieldNumber]string{}
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		field := b.parameter(name)
		if field == nil {
			wrong = append(wrong, apierr.Violated(name, "UNKNOWN_PARAMETER", "%q is not a query parameter here; %s", name, b.expected()))
			continue
		}
		path := string(field.Name())
		if other, twice := given[field.Number()]; twice || len(query[name]) > 1 && !field.IsList() {
			if other == "" {
				other = name
			}
			wrong = append(wrong, apierr.Violated(path, "REPEATED_PARAMETER", "is given more than once (%q, %q); give it once", other, name))
			continue
		}
		given[field.Number()] = name
		for _, text := range query[name] {
			if err := set(request, field, text); err != nil {
				wrong = append(wrong, apierr.Violated(path, "PARAMETER_VALUE", "%q is not %s", text, err.Error()))
			}
		}
	}
	return apierr.Invalid(apierr.InvalidRequest, wrong)
}

// parameter finds a parameter by either spelling.
func (b *binding) parameter(name string) protoreflect.FieldDescriptor {
	for _, field := range b.parameters {
		if name == field.JSONName() || name == string(field.Name()) {
			return field
		}
	}
	return nil
}

func (b *binding) expected() string {
	if len(b.parameters) == 0 {
		return "this method takes none"
	}
	names := make([]string, len(b.parameters))
	for i, field := range b.parameters {
		names[i] = field.JSONName()
	}
	return "known are " + strings.Join(names, ", ")
}

// set reads one value. The error completes the sentence "X is not".
func set(request protoreflect.Message, field protoreflect.FieldDescriptor, text string) error {
	value, err := parse(field, text)
	if err != nil {
		return err
	}
	if field.IsList() {
		request.Mutable(field).List().Append(value)
	} else {
		request.Set(field, value)
	}
	return nil
}

func parse(field protoreflect.FieldDescriptor, text string) (protoreflect.Value, error) {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	case protoreflect.BoolKind:
		if text != "true" && text != "false" {
			return protoreflect.Value{}, errors.New("a truth value: send true or false")
		}
		return protoreflect.ValueOfBool(text == "true"), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		value, err := strconv.ParseInt(text, 10, 32)
		return protoreflect.ValueOfInt32(int32(value)), number(err, "-2^31 to 2^31-1")
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		value, err := strconv.ParseInt(text, 10, 64)
		return protoreflect.ValueOfInt64(value), number(err, "-2^63 to 2^63-1")
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		value, err := strconv.ParseUint(text, 10, 32)
		return protoreflect.ValueOfUint32(uint32(value)), number(err, "0 to 2^32-1")
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		value, err := strconv.ParseUint(text, 10, 64)
		return protoreflect.ValueOfUint64(value), number(err, "0 to 2^64-1")
	case protoreflect.EnumKind:
		return parseEnum(field.Enum(), text)
	case protoreflect.BytesKind:
		data, err := base64.URLEncoding.DecodeString(text)
		if err != nil {
			err = errors.New("base64 in the alphabet of URLs")
		}
		return protoreflect.ValueOfBytes(data), err
	case protoreflect.MessageKind:
		if isMask(field) {
			return protoreflect.ValueOfMessage(parseMask(text).ProtoReflect()), nil
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			err = errors.New("a time: send one like 2026-01-31T12:00:00Z")
		}
		return protoreflect.ValueOfMessage(timestamppb.New(at).ProtoReflect()), err
	default:
		return protoreflect.Value{}, fmt.Errorf("a value that a query can hold: send %s through another protocol", field.Kind())
	}
}

func number(err error, limits string) error {
	if err != nil {
		return fmt.Errorf("a whole number of %s", limits)
	}
	return nil
}

func parseEnum(enum protoreflect.EnumDescriptor, text string) (protoreflect.Value, error) {
	if value := enum.Values().ByName(protoreflect.Name(text)); value != nil {
		return protoreflect.ValueOfEnum(value.Number()), nil
	}
	if number, err := strconv.ParseInt(text, 10, 32); err == nil && enum.Values().ByNumber(protoreflect.EnumNumber(number)) != nil {
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(number)), nil
	}
	names := make([]string, enum.Values().Len())
	for i := range names {
		names[i] = string(enum.Values().Get(i).Name())
	}
	return protoreflect.Value{}, fmt.Errorf("one of %s", strings.Join(names, ", "))
}
