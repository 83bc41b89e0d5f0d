# make demo    the whole system, once through, with output one can read
# make test    every test (as root, for those that run containers)
# make check   what must hold before a commit lands
# make terraforms
#              a newer Terraform and OpenTofu, which make test then tests with
# make bench   floors against ours, as a table
# make build   the programs, into bin/

SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
.PHONY: build demo test check bench images install-provider terraforms generate format clean

VERSION          := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PROVIDER_VERSION := 0.27.0
LDFLAGS          := -s -w -X github.com/sandbar-project/sandbar/internal/cli.Version=$(VERSION)
GO_BUILD         := CGO_ENABLED=0 go build -trimpath

# ---- programs ---------------------------------------------------------------

build: bin/sandbar bin/sandbar-guest bin/terraform-provider-coreweave

# Go decides what is stale.
.PHONY: bin/sandbar bin/sandbar-guest bin/terraform-provider-coreweave bin/images
bin/sandbar:
	$(GO_BUILD) -ldflags '$(LDFLAGS)' -o $@ ./cmd/sandbar
bin/sandbar-guest:
	$(GO_BUILD) -ldflags '-s -w' -o $@ ./cmd/sandbar-guest
bin/terraform-provider-coreweave:
	$(GO_BUILD) -ldflags '-s -w' -o $@ ./cmd/terraform-provider-coreweave
bin/images:
	cd tools && $(GO_BUILD) -o ../$@ ./images

# What tests and the demo run and the machine may lack, from its Go module. This
# Terraform is the last whose module builds by itself.
GVISOR_VERSION    := v0.0.0-20260905035102-160fafc42237
TERRAFORM_VERSION := v1.5.7
GO_INSTALL        := GOBIN="$(CURDIR)/bin" CGO_ENABLED=0 go install -trimpath -ldflags '-s -w'
bin/runsc:
	$(GO_INSTALL) gvisor.dev/gvisor/runsc@$(GVISOR_VERSION)
bin/terraform:
	$(GO_INSTALL) github.com/hashicorp/terraform@$(TERRAFORM_VERSION)

# A newer Terraform and OpenTofu, which `make test` tests with where they are
# built (minutes each).
terraforms: bin/terraform-next bin/tofu
bin/terraform-next: tools/terraform/build.sh
	tools/terraform/build.sh terraform $@
bin/tofu: tools/terraform/build.sh
	tools/terraform/build.sh tofu $@

# Terraform looks here by itself (its implied local mirror), so that a plain
# `terraform init` finds the provider.
PLUGINS := $(HOME)/.terraform.d/plugins/registry.terraform.io/coreweave/coreweave/$(PROVIDER_VERSION)/$(shell go env GOOS)_$(shell go env GOARCH)
install-provider: bin/terraform-provider-coreweave
	install -D -m 0755 bin/terraform-provider-coreweave $(PLUGINS)/terraform-provider-coreweave_v$(PROVIDER_VERSION)

# ---- images without a public registry ---------------------------------------

images: bin/images
	bin/images build build/images

# ---- doing it ---------------------------------------------------------------

demo:
	test/demo/demo.sh

bench: build
	go run ./test/bench -runtime $${SANDBAR_RUNTIME:-runsc} -o build/bench.json

# The race detector needs cgo. Tests that run containers need root and say so
# when they skip.
test: build build/tools/gotestsum $(if $(shell command -v runsc),,bin/runsc)
	PATH="$(CURDIR)/bin:$$PATH" \
	SANDBAR_TERRAFORM_NEXT=$(wildcard $(CURDIR)/bin/terraform-next) SANDBAR_TOFU=$(wildcard $(CURDIR)/bin/tofu) \
	build/tools/gotestsum --format pkgname --format-hide-empty-pkg -- -race -timeout 30m $(TESTFLAGS) ./...

# ---- checks -----------------------------------------------------------------

check: check-generated check-format check-tidy lint check-scripts vulnerabilities

# What `make generate` writes.
GENERATED   := 'api/*.pb.go' 'api/*.connect.go' api/openapi.yaml internal/store/sqlstore/db docs/errors.md
# Go and shell as people write it.
GO_FILES    := git ls-files -z '*.go' ':!api/*.pb.go' ':!api/*.connect.go' ':!internal/store/sqlstore/db'
SHELL_FILES := git ls-files -z '*.sh' .ci/run

.PHONY: check-generated check-format check-tidy check-scripts lint vulnerabilities
# Compares with what is committed or staged; a generated file that git does not
# know is as wrong as a stale one.
check-generated: generate
	@stale=$$(git diff --name-only -- $(GENERATED); git ls-files --others --exclude-standard -- $(GENERATED)); \
	test -z "$$stale" || { printf 'generated files are stale (run `make generate` and commit the result):\n%s\n' "$$stale" >&2; exit 1; }

check-format: build/tools/gofumpt build/tools/buf build/protodeps
	@stale=$$($(GO_FILES) | xargs -0 build/tools/gofumpt -l); \
	test -z "$$stale" || { printf 'not formatted (run `make format`):\n%s\n' "$$stale" >&2; exit 1; }
	build/tools/buf format --diff --exit-code api

check-tidy:
	go mod tidy -diff
	cd tools && go mod tidy -diff

lint: build/tools/golangci-lint build/tools/buf build/protodeps
	go vet ./...
	cd tools && go vet ./...
	build/tools/golangci-lint run --allow-parallel-runners ./...
	build/tools/buf lint

check-scripts:
	@if command -v shellcheck >/dev/null; then $(SHELL_FILES) | xargs -0 shellcheck -x; \
	else echo 'scripts: not checked, shellcheck is not installed'; fi

# The vulnerability database is on the network; without it there is nothing to
# compare with, which is said and not failed.
vulnerabilities: build/tools/govulncheck
	@if curl -sfo /dev/null --max-time 10 https://vuln.go.dev/index/modules.json; then build/tools/govulncheck ./...; \
	else echo 'vulnerabilities: not checked, the database at vuln.go.dev is out of reach'; fi

format: build/tools/gofumpt build/tools/buf build/protodeps
	$(GO_FILES) | xargs -0 build/tools/gofumpt -w
	build/tools/buf format -w api

# ---- generated code ---------------------------------------------------------

generate: build/tools/buf build/tools/protoc-gen-openapi build/tools/sqlc build/protodeps
	build/tools/buf generate
	cd tools && go run ./openapi ../api/openapi.yaml
	PATH="$(CURDIR)/build/tools:$$PATH" go generate ./internal/...

build/protodeps: tools/protodeps/main.go tools/go.mod
	rm -rf $@
	cd tools && go run ./protodeps ../$@

# Each tool at the version that tools/go.mod pins.
TOOL_buf                := github.com/bufbuild/buf/cmd/buf
TOOL_gofumpt            := mvdan.cc/gofumpt
TOOL_golangci-lint      := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
TOOL_gotestsum          := gotest.tools/gotestsum
TOOL_govulncheck        := golang.org/x/vuln/cmd/govulncheck
TOOL_protoc-gen-openapi := github.com/google/gnostic/cmd/protoc-gen-openapi
TOOL_sqlc               := github.com/sqlc-dev/sqlc/cmd/sqlc
build/tools/%: tools/go.mod tools/go.sum
	cd tools && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../$@ $(TOOL_$*)
	@touch $@

clean:
	rm -rf bin build
