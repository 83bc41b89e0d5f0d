-- name: InsertOrganization :exec
INSERT INTO organizations (organization_id, name, create_time)
VALUES ($1, $2, $3)
ON CONFLICT (name) DO NOTHING;

-- name: OrganizationByName :one
SELECT * FROM organizations WHERE name = $1;

-- name: InsertToken :exec
INSERT INTO tokens (token_id, organization_id, user_id, display_name, role, hash, create_time, expire_time, revoke_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: Token :one
SELECT * FROM tokens WHERE token_id = $1;

-- name: Tokens :many
SELECT * FROM tokens WHERE organization_id = $1 ORDER BY create_time, token_id;

-- name: RevokeToken :exec
UPDATE tokens
SET revoke_time = sqlc.arg(revoke_time)
WHERE organization_id = sqlc.arg(organization_id) AND token_id = sqlc.arg(token_id);
