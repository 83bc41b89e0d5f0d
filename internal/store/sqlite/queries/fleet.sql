-- name: InsertCluster :exec
INSERT INTO clusters (organization_id, cluster_id, name, zone, kind, create_time)
VALUES (?, ?, ?, ?, ?, ?);

-- name: ClusterNameTaken :one
SELECT count(*) FROM clusters WHERE organization_id = ? AND name = ?;

-- name: Cluster :one
SELECT sqlc.embed(clusters), cast(coalesce(managed_runners.runner_id, '') AS text) AS runner_id
FROM clusters
LEFT JOIN managed_runners
    ON managed_runners.organization_id = clusters.organization_id
    AND managed_runners.cluster_id = clusters.cluster_id
WHERE clusters.organization_id = sqlc.arg(organization_id)
    AND (clusters.cluster_id = sqlc.arg(cluster) OR clusters.name = sqlc.arg(cluster))
LIMIT 1;

-- name: Clusters :many
SELECT sqlc.embed(clusters), cast(coalesce(managed_runners.runner_id, '') AS text) AS runner_id
FROM clusters
LEFT JOIN managed_runners
    ON managed_runners.organization_id = clusters.organization_id
    AND managed_runners.cluster_id = clusters.cluster_id
WHERE clusters.organization_id = ?
ORDER BY clusters.name;

-- name: DeleteCluster :execrows
DELETE FROM clusters WHERE organization_id = ? AND cluster_id = ?;

-- name: RunnerOnCluster :one
SELECT runner_id FROM managed_runners WHERE organization_id = ? AND cluster_id = ?;

-- name: InsertRunner :exec
INSERT INTO managed_runners (
    organization_id, runner_id, uid, cluster_id, zone, runner_group_id, display_name, spec, policy, etag,
    phase, phase_time, rollout_time, latest_revision, target_revision, active_revision, install_error,
    create_time, update_time, last_heartbeat_time
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateRunner :exec
UPDATE managed_runners
SET runner_group_id = ?, display_name = ?, spec = ?, policy = ?, etag = ?, phase = ?, phase_time = ?,
    rollout_time = ?, latest_revision = ?, target_revision = ?, active_revision = ?, install_error = ?,
    update_time = ?, last_heartbeat_time = ?
WHERE organization_id = ? AND runner_id = ?;

-- name: Runner :one
SELECT * FROM managed_runners WHERE organization_id = ? AND runner_id = ?;

-- name: Runners :many
SELECT * FROM managed_runners
WHERE organization_id = sqlc.arg(organization_id)
    AND runner_id > sqlc.arg(after_runner_id)
    AND (sqlc.arg(cluster_id) = '' OR cluster_id = sqlc.arg(cluster_id))
    AND (sqlc.arg(zone) = '' OR zone = sqlc.arg(zone))
    AND (sqlc.arg(runner_group_id) = '' OR runner_group_id = sqlc.arg(runner_group_id))
ORDER BY runner_id
LIMIT sqlc.arg(page);

-- name: RunnerKeys :many
SELECT organization_id, runner_id FROM managed_runners ORDER BY organization_id, runner_id;

-- name: DeleteRunner :execrows
DELETE FROM managed_runners WHERE organization_id = ? AND runner_id = ? AND uid = ?;

-- name: InsertRevision :exec
INSERT INTO runner_revisions (organization_id, runner_id, revision, version, deployment, author, create_time)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: Revision :one
SELECT * FROM runner_revisions WHERE organization_id = ? AND runner_id = ? AND revision = ?;

-- name: DeleteCredential :exec
DELETE FROM runner_credentials WHERE organization_id = ? AND runner_id = ? AND revision = ? AND kind = ?;

-- name: InsertCredential :exec
INSERT INTO runner_credentials (kind, hash, organization_id, runner_id, revision, create_time)
VALUES (?, ?, ?, ?, ?, ?);

-- name: Credential :one
SELECT * FROM runner_credentials WHERE kind = ? AND hash = ?;

-- name: DeleteCredentials :exec
DELETE FROM runner_credentials WHERE organization_id = ? AND runner_id = ? AND revision = ?;

-- name: RequestID :one
SELECT * FROM request_ids WHERE organization_id = ? AND request_id = ?;

-- name: PutRequestID :exec
INSERT INTO request_ids (organization_id, request_id, digest, answer, expire_time)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (organization_id, request_id) DO UPDATE
SET digest = excluded.digest, answer = excluded.answer, expire_time = excluded.expire_time;

-- name: DeleteExpiredRequestIDs :exec
DELETE FROM request_ids WHERE expire_time < ?;

-- name: InsertAudit :exec
INSERT INTO audit_log (organization_id, time, user_id, token_id, action, resource, detail)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: AuditLog :many
SELECT * FROM audit_log WHERE organization_id = ? AND resource = ? ORDER BY audit_id;
