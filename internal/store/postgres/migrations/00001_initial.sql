-- Times are nanoseconds since 1970, UTC. What runners are declared with is
-- protojson with field names, because the names are the contract; sandboxes
-- are binary protobuf. What is ordered by sorts by its bytes, whatever the
-- database's locale.

-- +goose Up
CREATE TABLE organizations (
    organization_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name            TEXT COLLATE "C" NOT NULL UNIQUE,
    create_time     BIGINT NOT NULL
);

CREATE TABLE tokens (
    token_id        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    organization_id TEXT COLLATE "C" NOT NULL REFERENCES organizations (organization_id),
    user_id         TEXT NOT NULL,
    display_name    TEXT NOT NULL,
    role            BIGINT NOT NULL,
    hash            BYTEA NOT NULL,
    create_time     BIGINT NOT NULL,
    expire_time     BIGINT,
    revoke_time     BIGINT
);

CREATE INDEX tokens_by_organization ON tokens (organization_id, create_time, token_id);

CREATE TABLE clusters (
    organization_id TEXT COLLATE "C" NOT NULL REFERENCES organizations (organization_id),
    cluster_id      TEXT COLLATE "C" NOT NULL,
    name            TEXT COLLATE "C" NOT NULL,
    zone            TEXT NOT NULL,
    kind            BIGINT NOT NULL,
    create_time     BIGINT NOT NULL,
    PRIMARY KEY (organization_id, cluster_id),
    UNIQUE (organization_id, name)
);

CREATE TABLE managed_runners (
    organization_id     TEXT COLLATE "C" NOT NULL,
    runner_id           TEXT COLLATE "C" NOT NULL,
    uid                 TEXT COLLATE "C" NOT NULL,
    cluster_id          TEXT COLLATE "C" NOT NULL,
    zone                TEXT NOT NULL,
    runner_group_id     TEXT COLLATE "C" NOT NULL,
    display_name        TEXT NOT NULL,
    spec                TEXT NOT NULL,
    policy              TEXT,
    etag                TEXT NOT NULL,
    phase               TEXT NOT NULL,
    phase_time          BIGINT NOT NULL,
    rollout_time        BIGINT NOT NULL,
    latest_revision     BIGINT NOT NULL,
    target_revision     BIGINT NOT NULL,
    active_revision     BIGINT NOT NULL,
    install_error       TEXT,
    create_time         BIGINT NOT NULL,
    update_time         BIGINT NOT NULL,
    last_heartbeat_time BIGINT,
    PRIMARY KEY (organization_id, runner_id),
    UNIQUE (organization_id, cluster_id),
    FOREIGN KEY (organization_id, cluster_id) REFERENCES clusters (organization_id, cluster_id)
);

CREATE TABLE runner_revisions (
    organization_id TEXT COLLATE "C" NOT NULL,
    runner_id       TEXT COLLATE "C" NOT NULL,
    revision        BIGINT NOT NULL,
    version         TEXT NOT NULL,
    deployment      TEXT NOT NULL,
    author          TEXT NOT NULL,
    create_time     BIGINT NOT NULL,
    PRIMARY KEY (organization_id, runner_id, revision),
    FOREIGN KEY (organization_id, runner_id) REFERENCES managed_runners (organization_id, runner_id) ON DELETE CASCADE
);

CREATE TABLE runner_credentials (
    kind            TEXT NOT NULL,
    hash            BYTEA NOT NULL,
    organization_id TEXT COLLATE "C" NOT NULL,
    runner_id       TEXT COLLATE "C" NOT NULL,
    revision        BIGINT NOT NULL,
    create_time     BIGINT NOT NULL,
    PRIMARY KEY (kind, hash),
    UNIQUE (organization_id, runner_id, revision, kind),
    FOREIGN KEY (organization_id, runner_id) REFERENCES managed_runners (organization_id, runner_id) ON DELETE CASCADE
);

CREATE TABLE request_ids (
    organization_id TEXT COLLATE "C" NOT NULL,
    request_id      TEXT COLLATE "C" NOT NULL,
    digest          BYTEA NOT NULL,
    answer          BYTEA NOT NULL,
    expire_time     BIGINT NOT NULL,
    PRIMARY KEY (organization_id, request_id)
);

CREATE INDEX request_ids_by_expiry ON request_ids (expire_time);

CREATE TABLE audit_log (
    audit_id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organization_id TEXT COLLATE "C" NOT NULL,
    time            BIGINT NOT NULL,
    user_id         TEXT NOT NULL,
    token_id        TEXT COLLATE "C" NOT NULL,
    action          TEXT NOT NULL,
    resource        TEXT COLLATE "C" NOT NULL,
    detail          TEXT NOT NULL
);

CREATE INDEX audit_log_by_resource ON audit_log (organization_id, resource, audit_id);

CREATE TABLE sandboxes (
    organization_id     TEXT COLLATE "C" NOT NULL,
    sandbox_id          TEXT COLLATE "C" NOT NULL,
    user_id             TEXT NOT NULL,
    runner_id           TEXT COLLATE "C" NOT NULL,
    request_id          TEXT COLLATE "C",
    request_digest      BYTEA,
    spec                BYTEA NOT NULL,
    status              BYTEA NOT NULL,
    state               BIGINT NOT NULL,
    generation          BIGINT NOT NULL,
    create_time         BIGINT NOT NULL,
    end_time            BIGINT,
    terminate_requested BIGINT NOT NULL,
    PRIMARY KEY (organization_id, sandbox_id)
);

CREATE UNIQUE INDEX sandboxes_by_request ON sandboxes (organization_id, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX sandboxes_newest ON sandboxes (organization_id, create_time DESC, sandbox_id DESC);
CREATE INDEX sandboxes_live_newest ON sandboxes (organization_id, create_time DESC, sandbox_id DESC) WHERE end_time IS NULL;
CREATE INDEX sandboxes_live_by_runner ON sandboxes (organization_id, runner_id, create_time) WHERE end_time IS NULL;
CREATE INDEX sandboxes_ended ON sandboxes (end_time) WHERE end_time IS NOT NULL;

-- Tags and volumes carry the sandbox's place in the list, so that a page of
-- one tag is read in order from the index alone.
CREATE TABLE sandbox_tags (
    organization_id TEXT COLLATE "C" NOT NULL,
    tag             TEXT COLLATE "C" NOT NULL,
    create_time     BIGINT NOT NULL,
    sandbox_id      TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (organization_id, tag, create_time, sandbox_id),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandboxes (organization_id, sandbox_id) ON DELETE CASCADE
);

CREATE INDEX sandbox_tags_by_sandbox ON sandbox_tags (organization_id, sandbox_id);

CREATE TABLE sandbox_volumes (
    organization_id TEXT COLLATE "C" NOT NULL,
    volume_id       TEXT COLLATE "C" NOT NULL,
    create_time     BIGINT NOT NULL,
    sandbox_id      TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (organization_id, volume_id, create_time, sandbox_id),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandboxes (organization_id, sandbox_id) ON DELETE CASCADE
);

CREATE INDEX sandbox_volumes_by_sandbox ON sandbox_volumes (organization_id, sandbox_id);
