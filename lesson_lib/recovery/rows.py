"""The row of a run in `agent_runs`, read by its own bytes, and what else recovery writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from lesson_lib.checkpoints.archive import Kept
from lesson_lib.errors import InvalidStateError, LessonError, UnknownRunError
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import AgentConnection

# The name stands twice in the file, in the row and in the index: one of them may be damaged.
BY_ROW = "SELECT rowid FROM agent_runs NOT INDEXED WHERE run_id = ?"
BY_INDEX = "SELECT rowid FROM agent_runs INDEXED BY sqlite_autoindex_agent_runs_1 WHERE run_id = ?"


def find(connection: AgentConnection, run_id: str) -> int:
    """Return the place of a run's row; mend the index where it disagrees with the row.

    Raises:
        UnknownRunError: There is no such run.
    """
    found = [connection.execute(sql, (run_id,)).fetchone() for sql in (BY_ROW, BY_INDEX)]
    places = [int(row[0]) for row in found if row is not None]
    if not places:
        raise UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")
    if len(places) == 1:
        connection.execute("REINDEX agent_runs")
    return places[0]


def read(connection: AgentConnection, place: int) -> RunState | None:
    """Return what the row holds, None where that is no state."""
    try:
        row = connection.execute(
            "SELECT * FROM agent_runs NOT INDEXED WHERE rowid = ?", (place,)
        ).fetchone()
        return RunState(**dict(row))
    except (InvalidStateError, LessonError, sqlite3.Error, TypeError):
        return None


def write(connection: AgentConnection, place: int, state: RunState) -> None:
    """Write a state over the row at a place, its name included."""
    values = vars(state) | {"place": place}
    # A new name makes SQLite read all rows that refer to it, damaged ones too: only if needed.
    if connection.execute(BY_ROW, (state.run_id,)).fetchone() is None:
        connection.execute("UPDATE agent_runs SET run_id = :run_id WHERE rowid = :place", values)
    connection.execute(
        """UPDATE agent_runs SET ticket_id = :ticket_id, status = :status,
        next_action = :next_action, context_json = :context_json, version = :version
        WHERE rowid = :place""",
        values,
    )


def remove(connection: AgentConnection, kept: Iterable[Kept]) -> None:
    """Remove rows of the archive that no event tells of: their version will be another's."""
    for stray in kept:
        connection.execute(
            "DELETE FROM run_checkpoints WHERE checkpoint_id = ?", (stray.checkpoint_id,)
        )


def open_keys(connection: AgentConnection, run_id: str) -> list[str]:
    """Return the keys of the run's intents without an answer, oldest first.

    No intent is decoded: one that is damaged must not hide the others. Where no intent was ever
    stored, there are none.
    """
    there = "SELECT 1 FROM sqlite_schema WHERE name = 'tool_intents'"
    if connection.execute(there).fetchone() is None:
        return []
    rows = connection.execute(
        """SELECT idempotency_key FROM tool_intents WHERE run_id = ? AND status = 'intended'
        ORDER BY intended_at_utc, idempotency_key""",
        (run_id,),
    ).fetchall()
    return [key for (key,) in rows]
