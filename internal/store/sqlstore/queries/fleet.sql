-- name: InsertCluster :exec
INSERT INTO clusters (organization_id, cluster_id, name, zone, kind, create_time)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: ClusterNameTaken :one
SELECT count(*) FROM clusters WHERE organization_id = $1 AND name = $2;

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
WHERE clusters.organization_id = $1
ORDER BY clusters.name;

-- name: DeleteCluster :execrows
DELETE FROM clusters WHERE organization_id = $1 AND cluster_id = $2;

-- name: RunnerOnCluster :one
SELECT runner_id FROM managed_runners WHERE organization_id = $1 AND cluster_id = $2;

-- name: InsertRunner :exec
INSERT INTO managed_runners (
    organization_id, runner_id, uid, cluster_id, zone, runner_group_id, display_name, spec, policy, etag,
    phase, phase_time, rollout_time, latest_revision, target_revision, active_revision, install_error,
    create_time, update_time, last_heartbeat_time
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20);

-- name: UpdateRunner :exec
UPDATE managed_runners
SET runner_group_id = $1, display_name = $2, spec = $3, policy = $4, etag = $5, phase = $6, phase_time = $7,
    rollout_time = $8, latest_revision = $9, target_revision = $10, active_revision = $11, install_error = $12,
    update_time = $13, last_heartbeat_time = $14
WHERE organization_id = $15 AND runner_id = $16;

-- name: RunnerExists :one
SELECT count(*) FROM managed_runners WHERE organization_id = $1 AND runner_id = $2;

-- name: Runner :one
SELECT sqlc.embed(r), c.name AS cluster_name, sqlc.embed(target), cast(coalesce(active.version, '') AS text) AS active_version
FROM managed_runners r
JOIN clusters c ON c.organization_id = r.organization_id AND c.cluster_id = r.cluster_id
JOIN runner_revisions target
    ON target.organization_id = r.organization_id AND target.runner_id = r.runner_id AND target.revision = r.target_revision
LEFT JOIN runner_revisions active
    ON active.organization_id = r.organization_id AND active.runner_id = r.runner_id AND active.revision = r.active_revision
WHERE r.organization_id = $1 AND r.runner_id = $2;

-- name: Runners :many
SELECT sqlc.embed(r), c.name AS cluster_name, sqlc.embed(target), cast(coalesce(active.version, '') AS text) AS active_version
FROM managed_runners r
JOIN clusters c ON c.organization_id = r.organization_id AND c.cluster_id = r.cluster_id
JOIN runner_revisions target
    ON target.organization_id = r.organization_id AND target.runner_id = r.runner_id AND target.revision = r.target_revision
LEFT JOIN runner_revisions active
    ON active.organization_id = r.organization_id AND active.runner_id = r.runner_id AND active.revision = r.active_revision
WHERE r.organization_id = sqlc.arg(organization_id)
    AND r.runner_id > sqlc.arg(after_runner_id)
    AND (sqlc.arg(cluster_id) = '' OR r.cluster_id = sqlc.arg(cluster_id))
    AND (sqlc.arg(zone) = '' OR r.zone = sqlc.arg(zone))
    AND (sqlc.arg(runner_group_id) = '' OR r.runner_group_id = sqlc.arg(runner_group_id))
ORDER BY r.runner_id
LIMIT sqlc.arg(page);

-- name: RunnerKeys :many
SELECT organization_id, runner_id FROM managed_runners ORDER BY organization_id, runner_id;

-- name: DeleteRunner :execrows
DELETE FROM managed_runners WHERE organization_id = $1 AND runner_id = $2 AND uid = $3;

-- name: InsertRevision :exec
INSERT INTO runner_revisions (organization_id, runner_id, revision, version, deployment, author, create_time)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: Revision :one
SELECT * FROM runner_revisions WHERE organization_id = $1 AND runner_id = $2 AND revision = $3;

-- name: DeleteCredential :exec
DELETE FROM runner_credentials WHERE organization_id = $1 AND runner_id = $2 AND revision = $3 AND kind = $4;

-- name: InsertCredential :exec
INSERT INTO runner_credentials (kind, hash, organization_id, runner_id, revision, create_time)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: Credential :one
SELECT * FROM runner_credentials WHERE kind = $1 AND hash = $2;

-- name: DeleteCredentials :exec
DELETE FROM runner_credentials WHERE organization_id = $1 AND runner_id = $2 AND revision = $3;

-- name: RequestID :one
SELECT * FROM request_ids WHERE organization_id = $1 AND request_id = $2;

-- name: PutRequestID :exec
INSERT INTO request_ids (organization_id, request_id, digest, answer, expire_time)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (organization_id, request_id) DO UPDATE
SET digest = excluded.digest, answer = excluded.answer, expire_time = excluded.expire_time;

-- name: DeleteExpiredRequestIDs :exec
DELETE FROM request_ids WHERE expire_time < $1;

-- name: InsertAudit :exec
INSERT INTO audit_log (
    organization_id, time, user_id, token_id, source_address, client, action, resource, before_digest, after_digest, detail
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: AuditLog :many
SELECT * FROM audit_log
WHERE organization_id = sqlc.arg(organization_id)
    AND audit_id < sqlc.arg(before_audit_id)
    AND (sqlc.arg(resource) = '' OR resource = sqlc.arg(resource))
    AND (sqlc.arg(user_id) = '' OR user_id = sqlc.arg(user_id))
ORDER BY audit_id DESC
LIMIT sqlc.arg(page);
