-- name: InsertSandbox :exec
INSERT INTO sandboxes (
    organization_id, sandbox_id, user_id, runner_id, request_id, request_digest, spec, status, state,
    generation, create_time, end_time, terminate_requested
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: InsertSandboxTag :exec
INSERT INTO sandbox_tags (organization_id, tag, create_time, sandbox_id)
VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: InsertSandboxVolume :exec
INSERT INTO sandbox_volumes (organization_id, volume_id, create_time, sandbox_id)
VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: Sandbox :one
SELECT * FROM sandboxes WHERE organization_id = ? AND sandbox_id = ?;

-- name: SandboxByRequest :one
SELECT * FROM sandboxes WHERE organization_id = ? AND request_id = ?;

-- name: LiveSandboxes :many
SELECT * FROM sandboxes
WHERE organization_id = ? AND runner_id = ? AND end_time IS NULL
ORDER BY create_time;

-- name: UpdateSandbox :exec
UPDATE sandboxes
SET status = ?, state = ?, generation = ?, end_time = ?, terminate_requested = ?
WHERE organization_id = ? AND sandbox_id = ?;

-- name: DeleteSandboxesEndedBefore :execrows
DELETE FROM sandboxes WHERE end_time IS NOT NULL AND end_time < ?;
