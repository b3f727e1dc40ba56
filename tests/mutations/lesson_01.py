"""The guards of lesson 01."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "references are enforced",
        "sqlite/opening.py",
        '("foreign_keys", "ON", 1)',
        '("foreign_keys", "OFF", 0)',
    ),
    Mutation(
        "a status comes from a fixed set",
        "sqlite/schema.sql",
        " CHECK (status IN ('running', 'completed'))",
        "",
    ),
    Mutation(
        "a version is never negative",
        "sqlite/schema.sql",
        " CHECK (version >= 0)",
        "",
    ),
    Mutation(
        "only a completed run has no next action",
        "sqlite/schema.sql",
        " CHECK ((next_action IS NULL) = (status = 'completed'))",
        "",
    ),
    Mutation(
        "an event has a place of its own",
        "sqlite/schema.sql",
        ",\n    PRIMARY KEY (run_id, sequence)",
        "",
    ),
    Mutation(
        "a key has one saved result",
        "sqlite/schema.sql",
        "idempotency_key TEXT NOT NULL PRIMARY KEY",
        "idempotency_key TEXT NOT NULL",
    ),
    Mutation(
        "a file of another program is refused",
        "sqlite/opening.py",
        "if owner != APPLICATION_ID:",
        "if False:",
    ),
    Mutation(
        "the schema is created once",
        "sqlite/opening.py",
        "if version == 0:",
        "if True:",
    ),
]
