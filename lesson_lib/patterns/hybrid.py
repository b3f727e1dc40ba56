"""Hybrid: the log, and a snapshot of the state every few events, where a replay can begin."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, encode
from lesson_lib.errors import (
    CheckpointError,
    CheckpointSizeError,
    InvalidStateError,
    JSONValueError,
    StorageError,
)
from lesson_lib.model import RunState, Step
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.log import create_log
from lesson_lib.sqlite import AgentConnection

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


def create_snapshots(connection: AgentConnection) -> None:
    """Create the log and the table of its snapshots, where they are missing."""
    create_log(connection)
    with connection:
        connection.execute(TABLE)


@dataclass(frozen=True)
class Hybrid(EventSourcing):
    """A `StateStore` of logs with snapshots. The log is the truth, a snapshot may be lost.

    Args:
        every: How many steps lie between two snapshots, 1 or more.
    """

    every: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InvalidStateError(f"a snapshot every {self.every} steps: give 1 or more")

    def _append(self, state: RunState, step: Step, new: RunState) -> None:
        super()._append(state, step, new)
        if new.version % self.every == 0:
            # What does not fit into a snapshot stands in the log all the same.
            with suppress(CheckpointSizeError, InvalidStateError, JSONValueError):
                self._keep(encode(new, self.agent.schema))

    def _keep(self, stored: StoredCheckpoint) -> None:
        self.connection.execute(
            """INSERT OR REPLACE INTO run_snapshots VALUES (:run_id, :version, :event_schema,
            :schema_version, :compression, :body, :sha256)""",
            vars(stored) | {"event_schema": self.event_schema},
        )

    def _snapshot(self, run_id: str, up_to: int | None) -> RunState | None:
        # One of another event schema was made by another program, whose events may mean more.
        wanted = (run_id, up_to, up_to, self.event_schema)
        # The log has all that a damaged one had, and all where SQLite cannot read on.
        with (
            suppress(sqlite3.Error, StorageError, MemoryError),
            closing(self.connection.execute(NEWEST, wanted)) as rows,
        ):
            for row in rows:
                with suppress(CheckpointError):
                    return decode(StoredCheckpoint(**dict(row)), self.agent.schema)
        return None
