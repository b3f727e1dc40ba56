-- The three durable records. STRICT: text where a number was meant is refused.

CREATE TABLE agent_runs (            -- one current checkpoint per run
    run_id       TEXT NOT NULL PRIMARY KEY,
    ticket_id    TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'completed')),
    next_action  TEXT CHECK ((next_action IS NULL) = (status = 'completed')),
    context_json TEXT NOT NULL CHECK (json_valid(context_json)),
    version      INTEGER NOT NULL CHECK (version >= 0)
) STRICT;

CREATE TABLE agent_events (          -- what happened, in order
    run_id         TEXT NOT NULL REFERENCES agent_runs (run_id),
    sequence       INTEGER NOT NULL CHECK (sequence >= 1),
    session        TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    action         TEXT NOT NULL,
    detail         TEXT NOT NULL CHECK (json_valid(detail)),
    created_at_utc TEXT NOT NULL CHECK (created_at_utc GLOB '????-??-??T*Z'),
    PRIMARY KEY (run_id, sequence)
) STRICT;

CREATE TABLE tool_effects (          -- one saved result per idempotency key
    idempotency_key TEXT NOT NULL PRIMARY KEY,
    run_id          TEXT NOT NULL REFERENCES agent_runs (run_id),
    tool_name       TEXT NOT NULL,
    input_sha256    TEXT NOT NULL,   -- a repeat must come with the same input
    result_json     TEXT NOT NULL CHECK (json_valid(result_json))
) STRICT;
