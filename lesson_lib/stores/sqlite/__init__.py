"""The three durable records in one SQLite file."""

from lesson_lib.stores.sqlite.batches import CheckpointBatch
from lesson_lib.stores.sqlite.claims import (
    Claim,
    claim_next,
    claim_run,
    create_claims,
    read_claims,
    release,
    renew,
    require_claim,
    save_claimed,
)
from lesson_lib.stores.sqlite.connection import AgentConnection, connect, create_schema
from lesson_lib.stores.sqlite.effects import execute_once
from lesson_lib.stores.sqlite.records import (
    delete_run,
    load_state,
    read_events,
    record_event,
    save_checkpoint,
    start_run,
    unfinished_runs,
    write_checkpoint,
)

__all__ = [
    "AgentConnection",
    "CheckpointBatch",
    "Claim",
    "claim_next",
    "claim_run",
    "connect",
    "create_claims",
    "create_schema",
    "delete_run",
    "execute_once",
    "load_state",
    "read_claims",
    "read_events",
    "record_event",
    "release",
    "renew",
    "require_claim",
    "save_checkpoint",
    "save_claimed",
    "start_run",
    "unfinished_runs",
    "write_checkpoint",
]
