# One managed runner with a policy for its sandboxes.

terraform {
  required_providers {
    coreweave = {
      source  = "coreweave/coreweave"
      version = "~> 0.27"
    }
  }
}

# Endpoint and token come from COREWEAVE_API_ENDPOINT and COREWEAVE_API_TOKEN.
provider "coreweave" {}

variable "runner_id" {
  type        = string
  description = "Name of the runner, unique in the organization: lower-case letters, digits and hyphens."
}

variable "cluster_id" {
  type        = string
  description = "UUID of the cluster that gets the runner; it can have only one."
}

variable "zone" {
  type        = string
  description = "Zone of the cluster."
}

resource "coreweave_sandbox_managed_runner" "this" {
  runner_id    = var.runner_id
  cluster_id   = var.cluster_id
  zone         = lower(var.zone)
  display_name = "Example runner"

  # How the runner itself is deployed.
  spec = {
    release_channel = "RELEASE_CHANNEL_STABLE"

    # Automatic updates start on Saturdays between 02:00 and 03:00 UTC, and
    # never over the turn of the year.
    maintenance_policy = {
      windows = [{ cron = "0 2 * * SAT", duration_seconds = 3600 }]
      exclusions = [{
        start_time = "2027-12-20T00:00:00Z"
        end_time   = "2028-01-03T00:00:00Z"
        reason     = "Nobody is there to look"
      }]
    }

    overrides = {
      resources = {
        cpu_request    = "1"
        memory_request = "2Gi"
        cpu_limit      = "4"
        memory_limit   = "8Gi"
      }
    }
  }

  # What sandboxes on the runner may ask for.
  policy = {
    display_name = "Small sandboxes, no GPU"
    constraints = {
      resources = {
        default_cpu    = "1"
        default_memory = "2Gi"
        max_cpu        = "8"
        max_memory     = "32Gi"
        max_gpu_count  = 0
      }
      # A default, not a maximum.
      lifecycle = { default_lifetime_seconds = 3600 }
    }
  }
}

# The runner is ready when install_status is RUNNER_INSTALL_STATUS_READY,
# connection_status is RUNNER_CONNECTION_STATUS_CONNECTED and both revisions
# are the same.
output "runner_status" {
  value = {
    runner_id           = coreweave_sandbox_managed_runner.this.runner_id
    install_status      = coreweave_sandbox_managed_runner.this.install_status
    install_error       = coreweave_sandbox_managed_runner.this.install_error
    connection_status   = coreweave_sandbox_managed_runner.this.connection_status
    active_revision     = coreweave_sandbox_managed_runner.this.active_revision
    target_revision     = coreweave_sandbox_managed_runner.this.target_revision
    rollout_in_progress = coreweave_sandbox_managed_runner.this.rollout_in_progress
  }
}
