-- Where a change came from, and what it was from and to.

-- +goose Up
ALTER TABLE audit_log ADD COLUMN source_address TEXT NOT NULL DEFAULT '';
ALTER TABLE audit_log ADD COLUMN client TEXT NOT NULL DEFAULT '';
ALTER TABLE audit_log ADD COLUMN before_digest BLOB;
ALTER TABLE audit_log ADD COLUMN after_digest BLOB;

CREATE INDEX audit_log_newest ON audit_log (organization_id, audit_id);
