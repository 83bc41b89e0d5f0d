// Command protodeps writes the .proto files that ours import (google/api,
// buf/validate) into a directory. It prints them from the descriptors that
// their Go packages carry, so that code generation needs no schema registry
// and no vendored copy.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/jhump/protoreflect/v2/protoprint"
	_ "google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// roots are the files that ours import; what they import in turn comes along.
var roots = []string{
	"buf/validate/validate.proto",
	"google/api/annotations.proto",
	"google/api/field_behavior.proto",
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: protodeps DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "protodeps:", err)
		os.Exit(1)
	}
}

func write(directory string) error {
	files := map[string]protoreflect.FileDescriptor{}
	for _, path := range roots {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			return fmt.Errorf("find %s: %w", path, err)
		}
		collect(file, files)
	}
	printer := protoprint.Printer{}
	for path, file := range files {
		text, err := printer.PrintProtoToString(file)
		if err != nil {
			return fmt.Errorf("print %s: %w", path, err)
		}
		target := filepath.Join(directory, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// collect adds the file and its imports, except those that every compiler
// brings with it.
func collect(file protoreflect.FileDescriptor, into map[string]protoreflect.FileDescriptor) {
	if file.Package() == "google.protobuf" {
		return
	}
	into[file.Path()] = file
	for i := range file.Imports().Len() {
		collect(file.Imports().Get(i).FileDescriptor, into)
	}
}
