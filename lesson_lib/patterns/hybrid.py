"""Hybrid: the log, and a snapshot of the state every few events, where a replay can begin."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, encode
from lesson_lib.errors import (
    CheckpointError,
    CheckpointSizeError,
    InvalidStateError,
    JSONValueError,
    StorageError,
)
from lesson_lib.model import RunState
from lesson_lib.patterns.event_schema import CURRENT
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.protocol import Step
from lesson_lib.stores.sqlite import AgentConnection

# Apart from the archive: what recovers a run puts states there of which the log does not tell.
TABLE = """CREATE TABLE IF NOT EXISTS run_snapshots (
    run_id         TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    version        INTEGER NOT NULL CHECK (version >= 0),
    event_schema   INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    compression    TEXT NOT NULL,
    body           BLOB NOT NULL,
    sha256         TEXT NOT NULL,
    PRIMARY KEY (run_id, version)
) STRICT, WITHOUT ROWID"""

NEWEST = """SELECT run_id, version, schema_version, compression, body, sha256
    FROM run_snapshots AS kept JOIN run_log USING (run_id)
    WHERE run_id = ? AND sequence = version + 1 AND (? IS NULL OR sequence <= ?)
    AND kept.event_schema = ? ORDER BY version DESC"""


class Hybrid(EventSourcing):
    """Keep runs as logs with snapshots. The log alone is the truth, a snapshot may be lost."""

    def __init__(self, connection: AgentConnection, session: str, *, every: int = 2) -> None:
        """Make the tables where they are missing.

        Args:
            connection: An open connection.
            session: Which process life this is.
            every: How many steps lie between two snapshots, 1 or more.

        Raises:
            InvalidStateError: `every` is less than 1.
        """
        super().__init__(connection, session)
        if every < 1:
            raise InvalidStateError(f"a snapshot every {every} steps cannot be: give 1 or more")
        self._every = every
        with connection:
            connection.execute(TABLE)

    def _append(self, state: RunState, step: Step) -> RunState:
        new = super()._append(state, step)
        if new.version % self._every == 0:
            # What does not fit into a snapshot stands in the log all the same.
            with suppress(CheckpointSizeError, InvalidStateError, JSONValueError):
                self._keep(encode(new))
        return new

    def _keep(self, stored: StoredCheckpoint) -> None:
        self._connection.execute(
            """INSERT OR REPLACE INTO run_snapshots VALUES (:run_id, :version, :event_schema,
            :schema_version, :compression, :body, :sha256)""",
            vars(stored) | {"event_schema": CURRENT},
        )

    def snapshot(self, run_id: str, up_to: int | None) -> RunState | None:
        """Return the newest snapshot that can be trusted, None where there is none.

        One of another event schema was made by another program, whose events may mean more.
        """
        # The log has all that a damaged one had, and all where SQLite cannot read on.
        with (
            suppress(sqlite3.Error, StorageError, MemoryError),
            closing(self._connection.execute(NEWEST, (run_id, up_to, up_to, CURRENT))) as rows,
        ):
            for row in rows:
                with suppress(CheckpointError):
                    return decode(StoredCheckpoint(**dict(row)))
        return None
