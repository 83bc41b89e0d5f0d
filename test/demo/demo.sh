#!/usr/bin/env bash
# The whole system, once through: Terraform declares a managed runner on this
# machine, a sandbox runs under its policy, what the policy forbids is refused,
# and at the end nothing is left.
#
# Needs root, Go and make; what else is missing comes from Debian's packages or
# is built. SANDBAR_RUNTIME=runc|crun|runsc chooses the container runtime.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
# shellcheck source=test/demo/steps.sh
source test/demo/steps.sh

[[ $(id -u) == 0 ]] || fail "the demo makes network namespaces and runs containers: run it as root"
command -v go >/dev/null || fail "Go is missing: install Go 1.26 or newer from https://go.dev/dl/"

export PATH="$root/bin:$PATH"
work=$(mktemp -d -t sandbar-demo.XXXXXX)
registry_pid='' dev_pid=''
cleanup() {
  local status=$?
  for pid in $dev_pid $registry_pid; do
    if kill -INT "$pid" 2>/dev/null; then
      wait "$pid" 2>/dev/null || true
    fi
  done
  if ((status != 0)) && [[ -f $work/dev.log ]]; then
    echo "--- last lines of sandbar dev" >&2
    tail -n 30 "$work/dev.log" >&2
  fi
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT

install_missing() {
  local missing=()
  command -v runc >/dev/null || missing+=(runc)
  command -v ip >/dev/null || missing+=(iproute2)
  command -v nft >/dev/null || missing+=(nftables)
  command -v curl >/dev/null || missing+=(curl)
  command -v dpkg-deb >/dev/null || missing+=(dpkg)
  if ((${#missing[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    echo "installed: ${missing[*]}"
  fi
  if [[ ${SANDBAR_RUNTIME:-runsc} == runsc ]] && ! command -v runsc >/dev/null; then
    echo "building gVisor's runsc (a minute or two)"
    make --no-print-directory bin/runsc
  fi
  if ! command -v terraform >/dev/null; then
    echo "building Terraform (a few minutes; any newer one in PATH is used instead)"
    make --no-print-directory bin/terraform
  fi
  terraform version | sed -n 1p
}

start_registry() {
  coproc REGISTRY { exec bin/images serve build/images 127.0.0.1:0 2>"$work/registry.log"; }
  # shellcheck disable=SC2153 # coproc sets it
  registry_pid=$REGISTRY_PID
  read -r -t 60 _ registry <&"${REGISTRY[0]}" || fail "the registry did not start: $(cat "$work/registry.log")"
  echo "registry on $registry"
}

start_dev() {
  local port
  port=$(free_port)
  local arguments=(--data-dir "$work/data" --listen "127.0.0.1:$port" --registry-mirror "docker.io=http://$registry")
  [[ -n ${SANDBAR_RUNTIME:-} ]] && arguments+=(--runtime "$SANDBAR_RUNTIME")
  sandbar dev "${arguments[@]}" >"$work/dev.log" 2>&1 &
  dev_pid=$!
  wait_for 60 "sandbar dev to be ready" grep -qx ready "$work/dev.log"
  # shellcheck source=/dev/null
  source "$work/data/env"
  echo "serving on $COREWEAVE_API_ENDPOINT"
}

runner_is_ready() {
  terraform plan -refresh-only -out=runner-status.tfplan >/dev/null
  terraform apply runner-status.tfplan >/dev/null
  local status
  status=$(terraform output runner_status)
  [[ $status == *RUNNER_INSTALL_STATUS_READY* && $status == *RUNNER_CONNECTION_STATUS_CONNECTED* ]] || return 1
  local active target
  active=$(sed -n 's/.*active_revision *= *//p' <<<"$status")
  target=$(sed -n 's/.*target_revision *= *//p' <<<"$status")
  [[ $active == "$target" && $active != null ]]
}

wait_until_ready() {
  wait_for 120 "the runner to be READY, CONNECTED and at its target revision" runner_is_ready
  terraform output runner_status
}

refused() { # COMMAND...: it must be refused by the policy
  local status=0
  "$@" || status=$?
  ((status == 6)) || fail "expected a refusal (exit 6), got exit $status"
  echo "refused, as it should be (exit $status)"
}

run_python() {
  sandbar run python:3.11 -- python3 -c 'import platform, os
print("Python", platform.python_version(), "in a sandbox, kernel", platform.release())
print("pid", os.getpid(), "uid", os.getuid(), "sees", sorted(os.listdir("/"))[:5], "...")'
}

stop_dev() {
  kill -INT "$dev_pid"
  wait "$dev_pid"
  dev_pid=''
  tail -n 3 "$work/dev.log"
}

stop_registry() {
  kill -INT "$registry_pid"
  wait "$registry_pid" 2>/dev/null || true
  registry_pid=''
}

nothing_left() {
  snapshot >"$work/after"
  diff "$work/before" "$work/after" || fail "the lines above were not there before, or are no longer there"
  echo "mounts, network namespaces, links, nftables tables, cgroups and processes are as before"
}

step "Install what is missing" install_missing
step "Build Sandbar, the provider and two images made of Debian packages" make --no-print-directory build install-provider images
snapshot >"$work/before"
step "Serve the images from a registry on loopback" start_registry
step "Start the whole system: sandbar dev" start_dev

cp -r examples/managed-runner "$work/terraform"
cd "$work/terraform"
export TF_IN_AUTOMATION=1
[[ -t 1 ]] || export TF_CLI_ARGS=-no-color
step "terraform init" terraform init -input=false
step "terraform validate" terraform validate
step "terraform plan" terraform plan -input=false -out=runner.tfplan
step "terraform apply" terraform apply -input=false runner.tfplan
step "Follow the rollout: plan -refresh-only, apply, output" wait_until_ready
cd "$root"
step "The runner, as the CLI shows it" sandbar runner get
step "Run Python in a sandbox" run_python
step "Ask for more CPU than the policy allows" refused sandbar run --cpu 16 python:3.11 -- true
step "Ask for a GPU, which the policy forbids" refused sandbar run --gpu 1 python:3.11 -- true
cd "$work/terraform"
step "terraform destroy" terraform destroy -input=false -auto-approve
cd "$root"
step "Stop the system" stop_dev
stop_registry
step "Check that nothing is left" nothing_left
done_in
