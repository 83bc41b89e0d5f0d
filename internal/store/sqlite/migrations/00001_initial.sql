-- Times are nanoseconds since 1970, UTC. What runners are declared with is
-- protojson with field names, because the names are the contract; sandboxes
-- are binary protobuf.

-- +goose Up
CREATE TABLE organizations (
    organization_id TEXT NOT NULL PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    create_time     INTEGER NOT NULL
) STRICT;

CREATE TABLE tokens (
    token_id        TEXT NOT NULL PRIMARY KEY,
    organization_id TEXT NOT NULL REFERENCES organizations (organization_id),
    user_id         TEXT NOT NULL,
    display_name    TEXT NOT NULL,
    role            INTEGER NOT NULL,
    hash            BLOB NOT NULL,
    create_time     INTEGER NOT NULL,
    expire_time     INTEGER,
    revoke_time     INTEGER
) STRICT;

CREATE INDEX tokens_by_organization ON tokens (organization_id, create_time, token_id);

CREATE TABLE clusters (
    organization_id TEXT NOT NULL REFERENCES organizations (organization_id),
    cluster_id      TEXT NOT NULL,
    name            TEXT NOT NULL,
    zone            TEXT NOT NULL,
    kind            INTEGER NOT NULL,
    create_time     INTEGER NOT NULL,
    PRIMARY KEY (organization_id, cluster_id),
    UNIQUE (organization_id, name)
) STRICT;

CREATE TABLE managed_runners (
    organization_id     TEXT NOT NULL,
    runner_id           TEXT NOT NULL,
    uid                 TEXT NOT NULL,
    cluster_id          TEXT NOT NULL,
    zone                TEXT NOT NULL,
    runner_group_id     TEXT NOT NULL,
    display_name        TEXT NOT NULL,
    spec                TEXT NOT NULL,
    policy              TEXT,
    etag                TEXT NOT NULL,
    phase               TEXT NOT NULL,
    phase_time          INTEGER NOT NULL,
    rollout_time        INTEGER NOT NULL,
    latest_revision     INTEGER NOT NULL,
    target_revision     INTEGER NOT NULL,
    active_revision     INTEGER NOT NULL,
    install_error       TEXT,
    create_time         INTEGER NOT NULL,
    update_time         INTEGER NOT NULL,
    last_heartbeat_time INTEGER,
    PRIMARY KEY (organization_id, runner_id),
    UNIQUE (organization_id, cluster_id),
    FOREIGN KEY (organization_id, cluster_id) REFERENCES clusters (organization_id, cluster_id)
) STRICT;

CREATE TABLE runner_revisions (
    organization_id TEXT NOT NULL,
    runner_id       TEXT NOT NULL,
    revision        INTEGER NOT NULL,
    version         TEXT NOT NULL,
    deployment      TEXT NOT NULL,
    author          TEXT NOT NULL,
    create_time     INTEGER NOT NULL,
    PRIMARY KEY (organization_id, runner_id, revision),
    FOREIGN KEY (organization_id, runner_id) REFERENCES managed_runners (organization_id, runner_id) ON DELETE CASCADE
) STRICT;

CREATE TABLE runner_credentials (
    kind            TEXT NOT NULL,
    hash            BLOB NOT NULL,
    organization_id TEXT NOT NULL,
    runner_id       TEXT NOT NULL,
    revision        INTEGER NOT NULL,
    create_time     INTEGER NOT NULL,
    PRIMARY KEY (kind, hash),
    UNIQUE (organization_id, runner_id, revision, kind),
    FOREIGN KEY (organization_id, runner_id) REFERENCES managed_runners (organization_id, runner_id) ON DELETE CASCADE
) STRICT;

CREATE TABLE request_ids (
    organization_id TEXT NOT NULL,
    request_id      TEXT NOT NULL,
    digest          BLOB NOT NULL,
    answer          BLOB NOT NULL,
    expire_time     INTEGER NOT NULL,
    PRIMARY KEY (organization_id, request_id)
) STRICT;

CREATE INDEX request_ids_by_expiry ON request_ids (expire_time);

CREATE TABLE audit_log (
    audit_id        INTEGER PRIMARY KEY AUTOINCREMENT,
    organization_id TEXT NOT NULL,
    time            INTEGER NOT NULL,
    user_id         TEXT NOT NULL,
    token_id        TEXT NOT NULL,
    action          TEXT NOT NULL,
    resource        TEXT NOT NULL,
    detail          TEXT NOT NULL
) STRICT;

CREATE INDEX audit_log_by_resource ON audit_log (organization_id, resource, audit_id);

CREATE TABLE sandboxes (
    organization_id     TEXT NOT NULL,
    sandbox_id          TEXT NOT NULL,
    user_id             TEXT NOT NULL,
    runner_id           TEXT NOT NULL,
    request_id          TEXT,
    request_digest      BLOB,
    spec                BLOB NOT NULL,
    status              BLOB NOT NULL,
    state               INTEGER NOT NULL,
    generation          INTEGER NOT NULL,
    create_time         INTEGER NOT NULL,
    end_time            INTEGER,
    terminate_requested INTEGER NOT NULL,
    PRIMARY KEY (organization_id, sandbox_id)
) STRICT;

CREATE UNIQUE INDEX sandboxes_by_request ON sandboxes (organization_id, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX sandboxes_newest ON sandboxes (organization_id, create_time DESC, sandbox_id DESC);
CREATE INDEX sandboxes_live_newest ON sandboxes (organization_id, create_time DESC, sandbox_id DESC) WHERE end_time IS NULL;
CREATE INDEX sandboxes_live_by_runner ON sandboxes (organization_id, runner_id, create_time) WHERE end_time IS NULL;
CREATE INDEX sandboxes_ended ON sandboxes (end_time) WHERE end_time IS NOT NULL;

-- Tags and volumes carry the sandbox's place in the list, so that a page of
-- one tag is read in order from the index alone.
CREATE TABLE sandbox_tags (
    organization_id TEXT NOT NULL,
    tag             TEXT NOT NULL,
    create_time     INTEGER NOT NULL,
    sandbox_id      TEXT NOT NULL,
    PRIMARY KEY (organization_id, tag, create_time DESC, sandbox_id DESC),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandboxes (organization_id, sandbox_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX sandbox_tags_by_sandbox ON sandbox_tags (organization_id, sandbox_id);

CREATE TABLE sandbox_volumes (
    organization_id TEXT NOT NULL,
    volume_id       TEXT NOT NULL,
    create_time     INTEGER NOT NULL,
    sandbox_id      TEXT NOT NULL,
    PRIMARY KEY (organization_id, volume_id, create_time DESC, sandbox_id DESC),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandboxes (organization_id, sandbox_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX sandbox_volumes_by_sandbox ON sandbox_volumes (organization_id, sandbox_id);
