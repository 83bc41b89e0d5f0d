// Package api_test holds the contract to its field numbers.
package api_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	_ "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	_ "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	_ "github.com/sandbar-project/sandbar/api/sandbar/runner/v1"
)

var update = flag.Bool("update", false, "write the golden file")

// numbers lists everything that goes over the wire by number or name.
func numbers(files *protoregistry.Files, prefix string) []string {
	var lines []string
	files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), prefix) {
			return true
		}
		lines = append(lines, messageNumbers(file.Messages())...)
		lines = append(lines, enumNumbers(file.Enums())...)
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				lines = append(lines, fmt.Sprintf("rpc %s(%s%s) %s%s", m.FullName(), stream(m.IsStreamingClient()),
					m.Input().FullName(), stream(m.IsStreamingServer()), m.Output().FullName()))
			}
		}
		return true
	})
	slices.Sort(lines)
	return lines
}

func stream(is bool) string {
	if is {
		return "stream "
	}
	return ""
}

func messageNumbers(messages protoreflect.MessageDescriptors) (lines []string) {
	for i := range messages.Len() {
		message := messages.Get(i)
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			kind := field.Kind().String()
			if field.Message() != nil && !field.IsMap() {
				kind = string(field.Message().FullName())
			} else if field.Enum() != nil {
				kind = string(field.Enum().FullName())
			}
			lines = append(lines, fmt.Sprintf("field %s = %d %s %s presence=%v", field.FullName(), field.Number(), field.Cardinality(), kind, field.HasPresence()))
		}
		lines = append(lines, messageNumbers(message.Messages())...)
		lines = append(lines, enumNumbers(message.Enums())...)
	}
	return lines
}

func enumNumbers(enums protoreflect.EnumDescriptors) (lines []string) {
	for i := range enums.Len() {
		values := enums.Get(i).Values()
		for j := range values.Len() {
			lines = append(lines, fmt.Sprintf("enum %s.%s = %d", enums.Get(i).FullName(), values.Get(j).Name(), values.Get(j).Number()))
		}
	}
	return lines
}

func TestNumbersNeverChange(t *testing.T) {
	got := strings.Join(append(numbers(protoregistry.GlobalFiles, "coreweave."), numbers(protoregistry.GlobalFiles, "sandbar.")...), "\n") + "\n"
	if *update {
		if err := os.WriteFile("numbers.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("numbers.golden")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the contract differs from api/numbers.golden; if it only grew, run go test ./api -update (-want +got):\n%s", diff)
	}
}

// What the public descriptors have, ours have with the same number. Ours may
// have more.
func TestNumbersAreThePublicOnes(t *testing.T) {
	var data []byte
	for _, up := range []string{"../..", "../../.."} {
		if read, err := os.ReadFile(filepath.Join(up, "shared/contract/sandbox-v1.fds")); err == nil {
			data = read
		}
	}
	if data == nil {
		t.Skip("shared/contract/sandbox-v1.fds is not beside the repository; numbers.golden is checked all the same")
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(data, set); err != nil {
		t.Fatal(err)
	}
	public, err := protodesc.FileOptions{AllowUnresolvable: true}.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	ours := numbers(protoregistry.GlobalFiles, "coreweave.sandbox.v1")
	for _, line := range numbers(public, "coreweave.sandbox.v1") {
		if _, found := slices.BinarySearch(ours, line); !found {
			t.Errorf("the public contract has %q, ours does not", line)
		}
	}
}
