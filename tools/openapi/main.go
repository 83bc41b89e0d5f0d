// Command openapi mends what protoc-gen-openapi writes, in place: a path whose
// parameter is a field of a message, {secret_store.name}, becomes that of the
// same resource's other methods, {name}. OpenAPI forbids two names for one
// place.
package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"

	"go.yaml.in/yaml/v3"
)

func main() {
	if err := mend(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func mend(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	mergePaths(child(document.Content[0], "paths"))
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	const indentation = 4
	encoder.SetIndent(indentation)
	if err := encoder.Encode(&document); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, out.Bytes(), 0o600)
}

// child is the value of a key in a mapping; nil when it has none.
func child(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

var nested = regexp.MustCompile(`\{[a-z_]+\.([a-z_]+)\}`)

func mergePaths(paths *yaml.Node) {
	kept := paths.Content[:0]
	for i := 0; i+1 < len(paths.Content); i += 2 {
		key, item := paths.Content[i], paths.Content[i+1]
		plain := nested.ReplaceAllString(key.Value, "{$1}")
		if plain == key.Value {
			kept = append(kept, key, item)
			continue
		}
		for j := 0; j+1 < len(item.Content); j += 2 {
			rename(child(item.Content[j+1], "parameters"))
		}
		key.Value = plain
		if same := child(&yaml.Node{Content: kept}, plain); same != nil {
			same.Content = append(same.Content, item.Content...)
			continue
		}
		kept = append(kept, key, item)
	}
	paths.Content = kept
}

// rename gives parameters in the path the names that they have there.
func rename(parameters *yaml.Node) {
	if parameters == nil {
		return
	}
	for _, parameter := range parameters.Content {
		if child(parameter, "in").Value == "path" {
			name := child(parameter, "name")
			name.Value = nested.ReplaceAllString("{"+name.Value+"}", "$1")
		}
	}
}
