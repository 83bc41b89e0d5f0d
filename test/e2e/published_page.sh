#!/usr/bin/env bash
# Runs the configuration of the published page, as it is written there, against
# a real server: init, validate, plan, apply, refresh until ready, second plan,
# import into an empty state, destroy.
#
#   test/e2e/published_page.sh PATH-OF-PAGE
#
# Needs terraform with the provider installed (make install-provider) and jq,
# and in the environment COREWEAVE_API_ENDPOINT, COREWEAVE_API_TOKEN,
# TF_VAR_runner_id, TF_VAR_cluster_id and TF_VAR_zone, as `sandbar dev` writes
# them. READY_TIMEOUT bounds the wait for readiness in seconds (300).
# Leaves nothing: neither files nor the runner.
set -euo pipefail

if [[ $# -ne 1 || ! -r $1 ]]; then
  echo "usage: $0 PATH-OF-PAGE" >&2
  exit 2
fi
page=$(realpath "$1")
for tool in terraform jq; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed" >&2; exit 2; }
done
for name in COREWEAVE_API_ENDPOINT COREWEAVE_API_TOKEN TF_VAR_runner_id TF_VAR_cluster_id TF_VAR_zone; do
  [[ -n ${!name:-} ]] || { echo "$name is not set; source the env file of sandbar dev" >&2; exit 2; }
done
ready_timeout=${READY_TIMEOUT:-300}
resource=coreweave_sandbox_managed_runner.runner
export TF_IN_AUTOMATION=1 TF_INPUT=0 CHECKPOINT_DISABLE=1

runner_id=${TF_VAR_runner_id:?} cluster_id=${TF_VAR_cluster_id:?} zone=${TF_VAR_zone:?}
# The page's terraform.tfvars takes their place.
unset TF_VAR_runner_id TF_VAR_cluster_id TF_VAR_zone

work=$(mktemp -d)
created=
cleanup() {
  status=$?
  if [[ -n $created ]]; then
    # An import that failed half-way has set the state aside.
    [[ ! -e $work/created.tfstate ]] || mv "$work/created.tfstate" "$work/terraform.tfstate"
    echo "destroying the runner after a failure" >&2
    terraform -chdir="$work" destroy -auto-approve >/dev/null || {
      echo "the runner $runner_id could not be destroyed; its state was in $work and is kept" >&2
      exit "$status"
    }
  fi
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# block TITLE prints the fenced block of the page with that title.
block() {
  awk -v title="title=\"$1\"" '
    !inside && /^[ \t]*```/ && index($0, title) { inside = 1; found = 1; next }
    inside && /^[ \t]*```/ { exit }
    inside { print }
    END { exit !found }' "$page" || { echo "the page has no block $1" >&2; return 1; }
}

# step NAME COMMAND... runs the command, and says how long it took; its output
# is shown only when it fails. Commands run without -e: they chain with &&.
step() {
  local name=$1 began ended log=$work/step.log
  shift
  began=$(date +%s%N)
  if ! "$@" >"$log" 2>&1; then
    printf '%-34s failed\n' "$name"
    cat "$log" >&2
    return 1
  fi
  ended=$(date +%s%N)
  printf '%-34s %7d ms\n' "$name" $(((ended - began) / 1000000))
}

tf() { terraform -chdir="$work" "$@"; }

extract() {
  block main.tf >"$work/main.tf" &&
    block terraform.tfvars | sed \
      -e "s|\[RUNNER-ID\]|$runner_id|" -e "s|\[CLUSTER-ID\]|$cluster_id|" -e "s|\[ZONE\]|$zone|" >"$work/terraform.tfvars" || return
  if grep -n '\[[A-Z-]*\]' "$work/terraform.tfvars"; then
    echo "a placeholder of the page was not filled" >&2
    return 1
  fi
}

refresh() {
  tf plan -refresh-only -out=runner-status.tfplan &&
    tf apply runner-status.tfplan
}

ready() {
  tf output -json runner_status | jq -e '
    .install_status == "RUNNER_INSTALL_STATUS_READY"
    and .connection_status == "RUNNER_CONNECTION_STATUS_CONNECTED"
    and .active_revision == .target_revision
    and .rollout_in_progress == false' >/dev/null
}

await_ready() {
  local limit=$((SECONDS + ready_timeout))
  until refresh && ready; do
    if ((SECONDS >= limit)); then
      echo "the runner is not ready after $ready_timeout s:"
      tf output runner_status
      tf state pull | jq -r '.resources[].instances[].attributes.install_error // empty'
      return 1
    fi
    sleep 1
  done
}

import_into_empty_state() {
  # A refresh after it fills in the outputs, which an import leaves out.
  mv "$work/terraform.tfstate" "$work/created.tfstate" &&
    tf import "$resource" "$runner_id" &&
    refresh &&
    rm "$work/created.tfstate"
}

# The list of what the state holds is empty after a destroy.
nothing_left() { [[ -z $(tf state list) ]]; }

step 'extract main.tf, terraform.tfvars' extract
step 'terraform init' tf init
step 'terraform validate' tf validate
step 'terraform plan' tf plan -out=runner.tfplan
created=yes
step 'terraform apply' tf apply runner.tfplan
step 'refresh-only until ready' await_ready
tf output runner_status
step 'second plan is empty' tf plan -detailed-exitcode
step 'import into an empty state' import_into_empty_state
step 'plan after import is empty' tf plan -detailed-exitcode
step 'terraform destroy' tf destroy -auto-approve
created=
step 'nothing left in the state' nothing_left
echo "the published page works as written"
