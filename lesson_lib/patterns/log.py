"""The log: a run's events with their values, appended one after the other, never changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from lesson_lib.checkpoints.archive import GUARD
from lesson_lib.errors import ReplayError, StaleVersionError, TransactionError
from lesson_lib.json_text import JSONObject, from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.sqlite import AgentConnection

STATEMENTS = (
    # Without a hidden row number, by which REPLACE INTO would change an event unseen.
    """CREATE TABLE IF NOT EXISTS run_log (
    run_id       TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    sequence     INTEGER NOT NULL CHECK (sequence >= 1),
    event_schema INTEGER NOT NULL CHECK (event_schema >= 1),
    event_type   TEXT NOT NULL,
    payload_json TEXT NOT NULL CHECK (json_valid(payload_json)),
    PRIMARY KEY (run_id, sequence)
) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER IF NOT EXISTS run_log_has_no_gap BEFORE INSERT ON run_log
    WHEN NEW.sequence <> 1 + (SELECT coalesce(max(sequence), 0) FROM run_log
                              WHERE run_id = NEW.run_id)
    BEGIN SELECT RAISE(ABORT, 'this is not the next sequence of the run'); END""",
    """CREATE TRIGGER IF NOT EXISTS run_log_is_not_changed BEFORE UPDATE ON run_log
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
    # An event goes only together with its run.
    """CREATE TRIGGER IF NOT EXISTS run_log_is_not_cut BEFORE DELETE ON run_log
    WHEN EXISTS (SELECT 1 FROM agent_runs WHERE run_id = OLD.run_id)
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
)

# For each older version of the event schema, from 1 on, what makes type and payload of an event of
# it those of the next. Today's version is one more than there are.
type Upcasters = tuple[Callable[[str, JSONObject], tuple[str, JSONObject]], ...]


@dataclass(frozen=True)
class LogEvent:
    """One event of a run's log, in today's schema: something that happened, with its values."""

    run_id: str
    sequence: int
    event_type: str
    payload: JSONObject


def create_log(connection: AgentConnection) -> None:
    """Create the log and the triggers that guard it, where they are missing."""
    with connection:
        for statement in (*STATEMENTS, GUARD):
            connection.execute(statement)


def append(connection: AgentConnection, event: LogEvent, event_schema: int) -> None:
    """Append an event at the place it claims, inside the caller's transaction.

    Raises:
        StaleVersionError: That is not the next place: another session was faster.
        sqlite3.IntegrityError: There is no such run.
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError("append writes inside the caller's `with connection:` block")
    values = (event.run_id, event.sequence, event_schema, event.event_type)
    try:
        connection.execute(
            "INSERT INTO run_log VALUES (?, ?, ?, ?, ?)", (*values, to_json(event.payload))
        )
    except sqlite3.IntegrityError as error:
        if "next sequence" not in str(error):
            raise
        raise StaleVersionError(
            f"event {event.sequence} of {event.run_id} was refused: {error}. Another session was"
            " faster: load the state again"
        ) from error


def read_log(
    connection: AgentConnection, run_id: str, upcasters: Upcasters, after: int, up_to: int | None
) -> list[LogEvent]:
    """Return events of a run, each lifted to today's schema, one step per version.

    The stored events stay as they are: history is not rewritten, only read differently.

    Args:
        connection: An open connection.
        run_id: The run.
        upcasters: The steps up.
        after: The sequence before the first event wanted.
        up_to: The sequence of the last one; None for all.

    Raises:
        ReplayError: An event is of a newer schema, or not what its version says.
    """
    rows = connection.execute(
        """SELECT sequence, event_type, payload_json, event_schema FROM run_log
        WHERE run_id = ? AND sequence > ? AND (? IS NULL OR sequence <= ?) ORDER BY sequence""",
        (require_text("run_id", run_id), after, up_to, up_to),
    ).fetchall()
    today = len(upcasters) + 1
    found = []
    for sequence, stored_type, payload_json, event_schema in rows:
        if event_schema > today:
            raise ReplayError(
                f"event {sequence} of {run_id} has the schema version {event_schema}, this package"
                f" knows 1 to {today}: update the package, nothing is guessed"
            )
        try:
            event_type, payload = stored_type, dict(from_json(payload_json))
            for upcaster in upcasters[event_schema - 1 :]:
                event_type, payload = upcaster(event_type, payload)
        except (KeyError, TypeError, ValueError) as error:
            raise ReplayError(
                f"event {sequence} of {run_id} is no {stored_type} of schema version"
                f" {event_schema}: {error!r}. Restore it from a backup"
            ) from error
        found.append(LogEvent(run_id, sequence, event_type, payload))
    return found
