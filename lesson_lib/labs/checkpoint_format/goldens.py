"""Goldens: checkpoints as older versions of this package left them, which must load for ever."""

from __future__ import annotations

import base64
from pathlib import Path

from lesson_lib.checkpoints.archive import Keep, create_archive, put
from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, decompress
from lesson_lib.json_text import from_json, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.sqlite import AgentConnection, SQLiteStore, create_schema
from lesson_lib.tickets import DATA, Tools, read_runbooks, ticket_agent

FOLDER = DATA / "checkpoints"


def read_goldens(folder: Path = FOLDER) -> dict[str, StoredCheckpoint]:
    """Read the rows that lie in a folder, one JSON file each, by their file names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        row = from_json(path.read_text(encoding="utf-8"))
        found[path.stem] = StoredCheckpoint(**row | {"body": base64.b64decode(row["body"])})
    return found


def lay_down(connection: AgentConnection, stored: StoredCheckpoint) -> RunState:
    """Put a checkpoint, and what its writer left beside it, into an empty database.

    Returns:
        The state that it holds, as one of today's schema.
    """
    create_schema(connection)
    create_archive(connection)
    row = from_json(decompress(stored.body, stored.compression).decode())
    row |= {"run_id": stored.run_id, "version": stored.version, "context": to_json(row["context"])}
    connection.execute(
        """INSERT INTO agent_runs
        VALUES (:run_id, :ticket_id, :status, :next_action, :context, :version)""",
        row,
    )
    writer = SQLiteStore(connection, "session-1")
    writer.record_event(stored.run_id, "run_started", "start")
    for version, action in enumerate(list(ticket_agent.actions)[: stored.version], 1):
        writer.record_event(stored.run_id, "checkpoint_saved", action, {"version": version})
    put(connection, stored)
    return decode(stored, ticket_agent.schema)


def go_on(connection: AgentConnection, state: RunState) -> RunState:
    """Let a second session go on from a state to the end of its run, and keep each checkpoint."""
    tools = Tools(read_runbooks(), Ledger(connection.path.with_suffix(".ledger")))
    store = SQLiteStore(connection, "session-2", riders=(Keep(ticket_agent.schema),))
    return ticket_agent.run_to_end(store, state, tools)
