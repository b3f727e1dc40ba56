"""Goldens: checkpoints as older versions of this package left them, which must load for ever."""

from __future__ import annotations

import base64
from pathlib import Path

from lesson_lib.agent import ACTIONS, run_to_end
from lesson_lib.checkpoints.archive import create_archive, put, save_kept
from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, decompress
from lesson_lib.json_text import from_json, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import AgentConnection, create_schema, record_event
from lesson_lib.tickets import DATA, Tools, read_runbooks

FOLDER = DATA / "checkpoints"


def read_goldens(folder: Path = FOLDER) -> dict[str, StoredCheckpoint]:
    """Read the rows that lie in a folder, one JSON file each, by their file names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        row = from_json(path.read_text(encoding="utf-8"))
        found[path.stem] = StoredCheckpoint(**row | {"body": base64.b64decode(row["body"])})
    return found


def lay_down(connection: AgentConnection, stored: StoredCheckpoint) -> RunState:
    """Put a checkpoint into an empty database, with the rows that its writer left beside it.

    Returns:
        The state that it holds, as one of today's schema.
    """
    create_schema(connection)
    create_archive(connection)
    found = from_json(decompress(stored.body, stored.compression).decode())
    run_id, session = stored.run_id, "session-1"
    with connection:
        connection.execute(
            "INSERT INTO agent_runs VALUES (?, ?, ?, ?, ?, ?)",
            (
                *(run_id, found["ticket_id"], found["status"], found["next_action"]),
                *(to_json(found["context"]), stored.version),
            ),
        )
        record_event(
            connection, run_id=run_id, session=session, event_type="run_started", action="start"
        )
        for version, action in enumerate(list(ACTIONS)[: stored.version], 1):
            record_event(
                connection,
                run_id=run_id,
                session=session,
                event_type="checkpoint_saved",
                action=action,
                detail={"version": version},
            )
        put(connection, stored)
    return decode(stored)


def go_on(connection: AgentConnection, state: RunState) -> RunState:
    """Let a second session go on from a state to the end of its run, and keep each checkpoint."""
    tools = Tools(read_runbooks(), Ledger(connection.path.with_suffix(".ledger")))
    return run_to_end(connection, state, "session-2", tools, save=save_kept)
