"""The guards of lesson 01."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "references are enforced",
        "stores/sqlite/connection.py",
        '("foreign_keys", "ON", 1)',
        '("foreign_keys", "OFF", 0)',
    ),
    Mutation(
        "a status comes from a fixed set",
        "schema.sql",
        " CHECK (status IN ('running', 'completed'))",
        "",
    ),
    Mutation(
        "a version is never negative",
        "schema.sql",
        " CHECK (version >= 0)",
        "",
    ),
    Mutation(
        "only a completed run has no next action",
        "schema.sql",
        " CHECK ((next_action IS NULL) = (status = 'completed'))",
        "",
    ),
    Mutation(
        "an event has a place of its own",
        "schema.sql",
        ",\n    PRIMARY KEY (run_id, sequence)",
        "",
    ),
    Mutation(
        "a key has one saved result",
        "schema.sql",
        "idempotency_key TEXT NOT NULL PRIMARY KEY",
        "idempotency_key TEXT NOT NULL",
    ),
    Mutation(
        "a file of another program is refused",
        "stores/sqlite/connection.py",
        "if owner != APPLICATION_ID:",
        "if False:",
    ),
    Mutation(
        "the schema is created once",
        "stores/sqlite/connection.py",
        "if version == 0:",
        "if True:",
    ),
]
