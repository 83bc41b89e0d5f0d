-- name: InsertSandbox :exec
INSERT INTO sandboxes (
    organization_id, sandbox_id, user_id, runner_id, request_id, request_digest, spec, status, state,
    generation, create_time, end_time, terminate_requested
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: InsertSandboxTag :exec
INSERT INTO sandbox_tags (organization_id, tag, create_time, sandbox_id)
VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING;

-- name: InsertSandboxVolume :exec
INSERT INTO sandbox_volumes (organization_id, volume_id, create_time, sandbox_id)
VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING;

-- name: Sandbox :one
SELECT * FROM sandboxes WHERE organization_id = $1 AND sandbox_id = $2;

-- name: SandboxByRequest :one
SELECT * FROM sandboxes WHERE organization_id = $1 AND request_id = $2;

-- name: LiveSandboxes :many
SELECT * FROM sandboxes
WHERE organization_id = $1 AND runner_id = $2 AND end_time IS NULL
ORDER BY create_time;

-- name: UpdateSandbox :exec
UPDATE sandboxes
SET status = $1, state = $2, generation = $3, end_time = $4, terminate_requested = $5
WHERE organization_id = $6 AND sandbox_id = $7;

-- name: DeleteSandboxesEndedBefore :execrows
DELETE FROM sandboxes WHERE end_time IS NOT NULL AND end_time < $1;
