package provider

import (
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

func testTranslation() translation { return newRunnerResource().(*runnerResource).runner }

// unwritable are fields of the contract that no configuration can set: older
// names, what v1 clients must leave alone, and Sandbar's own, which are not in
// the provider's published schema.
var unwritable = map[protoreflect.FullName]bool{
	"coreweave.sandbox.v1.ManagedRunner.etag":                                     true,
	"coreweave.sandbox.v1.ManagedRunner.profile_bindings":                         true,
	"coreweave.sandbox.v1.ManagedRunner.active_profile_spec_version":              true,
	"coreweave.sandbox.v1.ManagedRunner.not_applicable_overrides":                 true,
	"coreweave.sandbox.v1.ManagedRunnerSpec.allow_privileged_profile_annotations": true,
	"coreweave.sandbox.v1.NetworkConstraints.deny_dns":                            true,
	"coreweave.sandbox.v1.PolicyEgressRule.dns_name":                              true,
	"coreweave.sandbox.v1.PolicyEgressRule.dns_name_except":                       true,
}

// collections that a Terraform set holds, which has neither order nor
// repetition.
var sets = map[protoreflect.Name]bool{
	"csi_driver_allowlist": true, "source_ranges": true, "allowed_registries": true, "allowed_images": true,
	"allowed_capabilities": true, "allowed_seccomp_profiles": true, "allowed_runtime_classes": true,
	"runtime_class_mappings": true, "allowed_instance_types": true, "denied_annotation_prefixes": true,
	"allowed_media": true, "cidrs": true, "except": true, "https_hostname_except": true,
}

// drawMessage fills a message with anything that a server may hold of what a
// configuration can say.
func drawMessage(t *rapid.T, message protoreflect.Message) {
	switch m := message.Interface().(type) {
	case *timestamppb.Timestamp:
		m.Seconds = rapid.Int64Range(0, 4_000_000_000).Draw(t, "seconds")
		m.Nanos = rapid.Int32Range(0, 999_999_999).Draw(t, "nanos")
		return
	case *structpb.Struct:
		m.Fields = map[string]*structpb.Value{}
		for _, key := range rapid.SliceOfN(rapid.StringMatching(`[a-zA-Z<]{1,5}`), 0, 3).Draw(t, "keys") {
			m.Fields[key] = rapid.SampledFrom([]*structpb.Value{
				structpb.NewNullValue(), structpb.NewBoolValue(false), structpb.NewNumberValue(0.5), structpb.NewNumberValue(7),
				structpb.NewStringValue(""), structpb.NewListValue(&structpb.ListValue{}), structpb.NewStructValue(&structpb.Struct{}),
			}).Draw(t, "value")
		}
		return
	}
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if unwritable[field.FullName()] || isObserved(field) || !rapid.Bool().Draw(t, string(field.Name())) {
			continue
		}
		drawField(t, message, field)
	}
}

func isObserved(field protoreflect.FieldDescriptor) bool {
	return slices.Contains(observed(), string(field.Name())) || slices.Contains([]protoreflect.Name{"create_time", "cluster_name"}, field.Name())
}

func drawField(t *rapid.T, message protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsMap():
		for key, value := range rapid.MapOfN(rapid.StringMatching(`[a-z./]{1,4}`), rapid.String(), 0, 3).Draw(t, "map") {
			message.Mutable(field).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
		}
	case field.IsList():
		list := message.Mutable(field).List()
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			if field.Kind() == protoreflect.MessageKind {
				drawMessage(t, list.AppendMutable().Message())
			} else {
				list.Append(drawScalar(t, field))
			}
		}
		if sets[field.Name()] {
			asSet(list, field)
		}
	case field.Kind() == protoreflect.MessageKind:
		drawMessage(t, message.Mutable(field).Message())
	default:
		message.Set(field, drawScalar(t, field))
	}
}

// asSet sorts a list and drops repeated elements.
func asSet(list protoreflect.List, field protoreflect.FieldDescriptor) {
	byKey := map[string]protoreflect.Value{}
	for i := range list.Len() {
		key := list.Get(i).String()
		switch field.Kind() {
		case protoreflect.MessageKind:
			raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(list.Get(i).Message().Interface())
			key = string(raw)
		case protoreflect.EnumKind:
			key = string(rune(list.Get(i).Enum()))
		default: // its text will do
		}
		byKey[key] = list.Get(i)
	}
	list.Truncate(0)
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		list.Append(byKey[key])
	}
}

func drawScalar(t *rapid.T, field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		// In a oneof only true selects.
		inOneof := field.ContainingOneof() != nil && !field.ContainingOneof().IsSynthetic()
		return protoreflect.ValueOfBool(inOneof || rapid.Bool().Draw(t, "bool"))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int64"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.IntRange(1, field.Enum().Values().Len()-1).Draw(t, "enum")))
	default:
		return protoreflect.ValueOfString(rapid.OneOf(rapid.Just("1Gi"), rapid.Just("1024Mi"), rapid.String()).Draw(t, "string"))
	}
}

func drawRunner(t *rapid.T) *sandboxv1.ManagedRunner {
	runner := &sandboxv1.ManagedRunner{}
	drawMessage(t, runner.ProtoReflect())
	return runner
}

func TestEverySettingOfARunnerSurvivesTheStateWithoutAPriorValue(t *testing.T) {
	translation := testTranslation()
	null := tftypes.NewValue(translation.object, nil)
	rapid.Check(t, func(t *rapid.T) {
		want := drawRunner(t)
		state, err := translation.stored(want, null)
		if err != nil {
			t.Fatalf("decode %s: %v", prototext.Format(want), err)
		}
		got, err := translation.runner(state)
		if err != nil {
			t.Fatalf("encode %s: %v", state, err)
		}
		if proto.Equal(want.GetIdentity(), &sandboxv1.RunnerIdentity{}) {
			want.Identity = got.GetIdentity()
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

func TestReadingBackWhatWasWrittenChangesNothing(t *testing.T) {
	translation := testTranslation()
	null := tftypes.NewValue(translation.object, nil)
	rapid.Check(t, func(t *rapid.T) {
		state, err := translation.stored(drawRunner(t), null)
		if err != nil {
			t.Fatal(err)
		}
		configured := drawZeros(t, state)
		message, err := translation.runner(configured)
		if err != nil {
			t.Fatal(err)
		}
		// A server that leaves out zero scalars is the harder case.
		if rapid.Bool().Draw(t, "foreign") {
			dropZeros(message.ProtoReflect())
		}
		again, err := translation.stored(message, configured)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range configuredNames() {
			if !child(configured, name).Equal(child(again, name)) {
				t.Fatalf("%s\nwritten: %s\nread:    %s", name, child(configured, name), child(again, name))
			}
		}
	})
}

func configuredNames() []string { return append(configured(), "runner_id", "zone", "cluster_id") }

// drawZeros writes zero where the value is null, as a person may do.
func drawZeros(t *rapid.T, state tftypes.Value) tftypes.Value {
	out, err := tftypes.Transform(state, func(at *tftypes.AttributePath, value tftypes.Value) (tftypes.Value, error) {
		name, _ := at.LastStep().(tftypes.AttributeName)
		if !value.IsNull() || name == "max_gpu_count" || strings.HasPrefix(string(name), "dns_name") || !rapid.Bool().Draw(t, "zero") {
			return value, nil
		}
		switch kind := value.Type().(type) {
		case tftypes.List:
			return tftypes.NewValue(kind, []tftypes.Value{}), nil
		case tftypes.Set:
			return tftypes.NewValue(kind, []tftypes.Value{}), nil
		case tftypes.Map:
			return tftypes.NewValue(kind, map[string]tftypes.Value{}), nil
		}
		if value.Type().Is(tftypes.Bool) && !slices.Contains([]tftypes.AttributeName{"any", "node_default", "disabled", "deny_dns"}, name) {
			return tftypes.NewValue(tftypes.Bool, false), nil
		}
		if value.Type().Is(tftypes.String) && (strings.HasSuffix(string(name), "_class") || name == "reason" || name == "hostname") && name != "runtime_class" {
			return tftypes.NewValue(tftypes.String, ""), nil
		}
		if value.Type().Is(tftypes.Number) {
			return tftypes.NewValue(tftypes.Number, big.NewFloat(0)), nil
		}
		return value, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// dropZeros clears optional scalars that are zero, but for the one whose
// absence means something else.
func dropZeros(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
		case field.IsList():
			for i := range value.List().Len() {
				if field.Kind() == protoreflect.MessageKind {
					dropZeros(value.List().Get(i).Message())
				}
			}
		case field.Kind() == protoreflect.MessageKind:
			if field.Message().FullName() != "google.protobuf.Struct" {
				dropZeros(value.Message())
			}
		case field.HasOptionalKeyword() && value.Equal(field.Default()) && field.Name() != "max_gpu_count":
			message.Clear(field)
		}
		return true
	})
}

// throughState stores a runner where nothing was before, and reads it back.
func throughState(t *testing.T, runner *sandboxv1.ManagedRunner) *sandboxv1.ManagedRunner {
	t.Helper()
	translation := testTranslation()
	state, err := translation.stored(runner, tftypes.NewValue(translation.object, nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := translation.runner(state)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestPolicyPresenceSurvives(t *testing.T) {
	for name, policy := range map[string]string{
		"empty policy":                        `{}`,
		"empty base":                          `{"base": {}}`,
		"empty resources, GPUs not capped":    `{"constraints": {"resources": {}}}`,
		"no GPU":                              `{"constraints": {"resources": {"maxGpuCount": "0"}}}`,
		"more GPUs than a float can count":    `{"constraints": {"resources": {"maxGpuCount": "9007199254740993"}}}`,
		"empty allowlist refuses all sources": `{"controlPlaneAccess": {"sourceIpAllowlist": {}}}`,
		"access without an allowlist":         `{"controlPlaneAccess": {}}`,
		"explicit false":                      `{"constraints": {"security": {"allowPrivileged": false}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			want := &sandboxv1.ManagedRunner{Policy: &sandboxv1.Policy{}}
			if err := protojson.Unmarshal([]byte(policy), want.Policy); err != nil {
				t.Fatal(err)
			}
			got := throughState(t, want)
			if diff := cmp.Diff(want.GetPolicy(), got.GetPolicy(), protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestADisabledDataPlaneSurvives(t *testing.T) {
	want := &sandboxv1.ManagedRunner{Spec: &sandboxv1.ManagedRunnerSpec{DataPlane: &sandboxv1.RunnerDataPlaneConfig{
		Exposure: &sandboxv1.RunnerDataPlaneConfig_Disabled{Disabled: &sandboxv1.RunnerDataPlaneDisabledConfig{}},
	}}}
	got := throughState(t, want)
	if diff := cmp.Diff(want.GetSpec(), got.GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestARemovedGPUCapIsDrift(t *testing.T) {
	translation := testTranslation()
	capped := &sandboxv1.ManagedRunner{Policy: &sandboxv1.Policy{Constraints: &sandboxv1.PolicyConstraints{
		Resources: &sandboxv1.ResourceConstraints{MaxGpuCount: proto.Int64(0)},
	}}}
	state, err := translation.stored(capped, tftypes.NewValue(translation.object, nil))
	if err != nil {
		t.Fatal(err)
	}
	capped.Policy.Constraints.Resources.MaxGpuCount = nil
	read, err := translation.stored(capped, state)
	if err != nil {
		t.Fatal(err)
	}
	if child(state, "policy").Equal(child(read, "policy")) {
		t.Error("the removed cap is not seen")
	}
}

func TestOtherSpellingsOfTheSameValueAreKept(t *testing.T) {
	translation := testTranslation()
	as := func(memory, end, base string) *sandboxv1.ManagedRunner {
		object := &structpb.Struct{}
		if err := protojson.Unmarshal([]byte(base), object); err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, end)
		if err != nil {
			t.Fatal(err)
		}
		return &sandboxv1.ManagedRunner{
			Spec: &sandboxv1.ManagedRunnerSpec{
				Overrides:         &sandboxv1.RunnerOverrides{Resources: &sandboxv1.RunnerResources{MemoryLimit: memory}},
				MaintenancePolicy: &sandboxv1.MaintenancePolicy{Exclusions: []*sandboxv1.MaintenanceExclusion{{EndTime: timestamppb.New(at)}}},
			},
			Policy: &sandboxv1.Policy{Base: object},
		}
	}
	prior, err := translation.stored(as("2Gi", "2027-01-01T00:00:00Z", `{"a": 1, "b": []}`), tftypes.NewValue(translation.object, nil))
	if err != nil {
		t.Fatal(err)
	}
	// The person writes the time with an offset and the JSON with spaces.
	prior, err = tftypes.Transform(prior, func(at *tftypes.AttributePath, value tftypes.Value) (tftypes.Value, error) {
		switch at.LastStep() {
		case tftypes.AttributeName("end_time"):
			return tftypes.NewValue(tftypes.String, "2027-01-01T01:00:00+01:00"), nil
		case tftypes.AttributeName("base"):
			return tftypes.NewValue(tftypes.String, `{ "b": [], "a": 1.0 }`), nil
		}
		return value, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	same, err := translation.stored(as("2048Mi", "2027-01-01T00:00:00Z", `{"b": [], "a": 1}`), prior)
	if err != nil {
		t.Fatal(err)
	}
	if !same.Equal(prior) {
		t.Errorf("got %s\nwant %s", same, prior)
	}
	other, err := translation.stored(as("2049Mi", "2027-01-01T00:00:01Z", `{"b": [], "a": 2}`), prior)
	if err != nil {
		t.Fatal(err)
	}
	if child(other, "spec").Equal(child(prior, "spec")) || child(other, "policy").Equal(child(prior, "policy")) {
		t.Error("other values are taken for the same")
	}
}
