// Package api holds the contract: .proto files, the code generated from them,
// and the same as OpenAPI.
package api

import _ "embed" // for OpenAPI

// OpenAPI describes the REST surface, in OpenAPI 3.0 as YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
