"""Hybrid: the log, and a snapshot of the state every few events, where a replay can begin."""

from __future__ import annotations

from contextlib import closing, suppress

from lesson_lib.checkpoints.archive import create_archive, keep
from lesson_lib.checkpoints.codec import StoredCheckpoint, decode
from lesson_lib.errors import CheckpointError
from lesson_lib.model import RunState
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.protocol import Step
from lesson_lib.stores.sqlite import AgentConnection


class Hybrid(EventSourcing):
    """Keep runs as logs with snapshots. The log alone is the truth, a snapshot may be lost."""

    def __init__(self, connection: AgentConnection, session: str, *, every: int = 2) -> None:
        """Make the tables where they are missing.

        Args:
            connection: An open connection.
            session: Which process life this is.
            every: How many steps lie between two snapshots.
        """
        super().__init__(connection, session)
        self._every = every
        create_archive(connection)

    def _append(self, state: RunState, step: Step) -> RunState:
        new = super()._append(state, step)
        if new.version % self._every == 0:
            keep(self._connection, new)
        return new

    def snapshot(self, run_id: str, up_to: int | None) -> RunState | None:
        """Return the newest snapshot that can be trusted, None where there is none."""
        rows = self._connection.execute(
            """SELECT run_id, version, schema_version, compression, body, sha256
            FROM run_checkpoints JOIN run_log USING (run_id)
            WHERE run_id = ? AND sequence = version + 1 AND (? IS NULL OR sequence <= ?)
            ORDER BY version DESC, checkpoint_id DESC""",
            (run_id, up_to, up_to),
        )
        with closing(rows):
            for row in rows:
                with suppress(CheckpointError):  # the log has all that a damaged one had
                    return decode(StoredCheckpoint(**dict(row)))
        return None
