-- A database as a server left it whose schema was at version 2: at least one
-- row in every table. This file is never edited; a new version gets its own.
INSERT INTO organizations VALUES ('org', 'acme', 1790000000000000000);
INSERT INTO tokens VALUES
    ('tok-1', 'org', 'ada', 'laptop', 2, x'0101010101010101010101010101010101010101010101010101010101010101', 1790000000000000001, NULL, NULL),
    ('tok-2', 'org', 'bob', '', 1, x'0202020202020202020202020202020202020202020202020202020202020202', 1790000000000000002, 1890000000000000000, 1790000000000000003);
INSERT INTO clusters VALUES ('org', 'cluster-1', 'this-host', 'zone-a', 1, 1790000000000000004);
INSERT INTO managed_runners VALUES (
    'org', 'runner-1', 'uid-1', 'cluster-1', 'zone-a', 'default', 'First',
    '{"release_channel":"RELEASE_CHANNEL_STABLE","overrides":{"args":["--log-level=debug"]}}',
    '{"constraints":{"resources":{"max_cpu":"8","max_gpu_count":"0"}}}', 'etag-1', 'ready',
    1790000000000000005, 1790000000000000006, 2, 2, 1, NULL, 1790000000000000007, 1790000000000000008, 1790000000000000009);
INSERT INTO runner_revisions VALUES
    ('org', 'runner-1', 1, '1.0.0', '{}', 'ada', 1790000000000000010),
    ('org', 'runner-1', 2, '1.1.0', '{"args":["--log-level=debug"]}', 'ada', 1790000000000000011);
INSERT INTO runner_credentials VALUES ('session', x'0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a', 'org', 'runner-1', 1, 1790000000000000012);
INSERT INTO request_ids VALUES ('org', 'request-1', x'0b', x'', 1890000000000000000);
INSERT INTO audit_log (organization_id, time, user_id, token_id, action, resource, detail, source_address, client, before_digest, after_digest)
    VALUES ('org', 1790000000000000013, 'ada', 'tok-1', 'CreateManagedRunner', 'runner-1', '{"a":"b"}', '203.0.113.7', 'curl/8.0', NULL, x'0d');
-- The specs and statuses are protobuf: tags (8) "a" and "b"; state (1) RUNNING
-- and COMPLETED with exit code (9) 0.
INSERT INTO sandboxes VALUES
    ('org', 'sb-1', 'bob', 'runner-1', 'request-2', x'0c', x'420161420162', x'0802', 2, 1, 1790000000000000014, NULL, 0),
    ('org', 'sb-2', 'bob', 'runner-1', NULL, NULL, x'420162', x'08034800', 3, 4, 1790000000000000015, 1790000000000000016, 1);
INSERT INTO sandbox_tags VALUES
    ('org', 'a', 1790000000000000014, 'sb-1'),
    ('org', 'b', 1790000000000000014, 'sb-1'),
    ('org', 'b', 1790000000000000015, 'sb-2');
INSERT INTO sandbox_volumes VALUES ('org', 'volume-1', 1790000000000000014, 'sb-1');
