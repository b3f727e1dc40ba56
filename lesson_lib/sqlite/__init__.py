"""The three durable records in one SQLite file.

`opening` opens it, `connection` makes a `with` block one transaction, `records` writes runs and
events, `effects` calls a tool once. The functions take a connection, and those that write an event
or a checkpoint of the caller's say so: `record_event` and `write_checkpoint` want his `with
connection:` block. `SQLiteStore` has the same as methods, each in a transaction of its own.
"""

from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.sqlite.effects import execute_once
from lesson_lib.sqlite.opening import connect, create_schema
from lesson_lib.sqlite.records import (
    delete_run,
    load_state,
    read_events,
    record_event,
    save_checkpoint,
    start_run,
    unfinished_runs,
    write_checkpoint,
    write_prepared,
)
from lesson_lib.sqlite.store import SQLiteStore

__all__ = [
    "AgentConnection",
    "SQLiteStore",
    "connect",
    "create_schema",
    "delete_run",
    "execute_once",
    "load_state",
    "read_events",
    "record_event",
    "save_checkpoint",
    "start_run",
    "unfinished_runs",
    "write_checkpoint",
    "write_prepared",
]
