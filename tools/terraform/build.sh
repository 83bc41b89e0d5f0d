#!/usr/bin/env bash
# build.sh terraform|tofu OUT: a Terraform or OpenTofu newer than what the machine
# may have, built from its Go module under the module's own go.mod and go.sum; for
# tests only.
set -euo pipefail

TERRAFORM=github.com/hashicorp/terraform@v1.14.3
OPENTOFU=github.com/opentofu/opentofu@v1.12.6

# build MODULE_DIR PACKAGE VERSION_PACKAGE
build() {
  cd "$1"
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X $3.dev=no" -o "$out" "$2"
}

module_dir() { go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

# A module's archive leaves out the modules nested in it. Terraform's are remote
# state backends, which no test uses: stand-ins that say so take their place.
stand_ins() {
  mkdir -p internal/legacy
  echo 'module github.com/hashicorp/terraform/internal/legacy' >internal/legacy/go.mod
  local name path
  for name in azure consul cos gcs kubernetes oci oss pg s3; do
    path=internal/backend/remote-state/$name
    mkdir -p "$path"
    echo "module github.com/hashicorp/terraform/$path" >"$path/go.mod"
    cat >"$path/backend.go" <<GO
package $name

import "github.com/hashicorp/terraform/internal/backend"

func New() backend.Backend { panic("this build, for tests, has no $name backend") }
GO
  done
}

out=$(realpath -m "$2")
case $1 in
terraform)
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  cp -r --no-preserve=mode "$(module_dir "$TERRAFORM")/." "$copy"
  (cd "$copy" && stand_ins)
  build "$copy" . github.com/hashicorp/terraform/version
  ;;
tofu)
  build "$(module_dir "$OPENTOFU")" ./cmd/tofu github.com/opentofu/opentofu/version
  ;;
*)
  echo "$1: expected terraform or tofu" >&2
  exit 2
  ;;
esac
