"""The archive: every checkpoint of a run, with its checksum, beside the current one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, digest, encode
from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import CheckpointConflictError, CheckpointError
from lesson_lib.json_text import to_json
from lesson_lib.model import RunState, require_text
from lesson_lib.sqlite import AgentConnection
from lesson_lib.sqlite.records import has_table
from lesson_lib.store import Rider, Saving

TABLE = """CREATE TABLE IF NOT EXISTS run_checkpoints (
    checkpoint_id  INTEGER PRIMARY KEY,
    run_id         TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    version        INTEGER NOT NULL CHECK (version >= 0),
    schema_version INTEGER NOT NULL,
    compression    TEXT NOT NULL,
    body           BLOB NOT NULL,
    sha256         TEXT NOT NULL,
    UNIQUE (run_id, version, sha256)
) STRICT"""
# REPLACE INTO deletes the old row first, and all that belongs to the run with it, without a word.
GUARD = """CREATE TRIGGER IF NOT EXISTS runs_are_never_replaced BEFORE INSERT ON agent_runs
    WHEN EXISTS (SELECT 1 FROM agent_runs WHERE run_id = NEW.run_id OR rowid = NEW.rowid)
    BEGIN SELECT RAISE(ABORT, 'this run is stored already, with all that belongs to it'); END"""
# As bytes: a changed byte may leave no UTF-8, and that is for the checksum to say.
ROWS = """SELECT checkpoint_id, version, schema_version, CAST(body AS BLOB),
    CAST(compression AS BLOB), CAST(sha256 AS BLOB) FROM run_checkpoints
    WHERE run_id = ? AND version BETWEEN coalesce(?, 0) AND coalesce(?, 9e18)
    ORDER BY version DESC, checkpoint_id DESC"""


@dataclass(frozen=True)
class Kept:
    """A row of the archive; without a `state` where it cannot be trusted, and a `problem` then.

    `schema_version` is 0 where the bytes are not those that were stored.
    """

    checkpoint_id: int
    version: int
    schema_version: int
    state: RunState | None
    problem: str = ""


@dataclass(frozen=True)
class Keep(Rider):
    """Keeps each saved checkpoint in the archive too, and that of a new run as version 0."""

    schema: ContextSchema

    def check(self, connection: AgentConnection, saving: Saving) -> None:
        """Refuse a file that is not the one this session has worked on.

        Raises:
            CheckpointConflictError: The run has another content at the version before this one,
                or the archive has another checkpoint of the new version.
            InvalidStateError: The run's row is damaged.
        """
        before, after = saving.before, saving.after
        if before is not None:
            row = connection.execute(
                "SELECT * FROM agent_runs WHERE run_id = ? AND version = ?",
                (before.run_id, before.version),
            ).fetchone()
            if row is None:  # the run has moved on, and the save itself says so
                return
            if dict(row) != vars(before) and not self._agrees(connection, RunState(**row), before):
                raise _conflict(before, "stored")
        rivals = read_kept(connection, after.run_id, self.schema, version=after.version)
        if any(kept.state not in (None, after) for kept in rivals):
            raise _conflict(after, "kept")

    def write(self, connection: AgentConnection, saving: Saving) -> None:
        """Put the checkpoint into the archive, unless `codec.encode` refuses it."""
        put(connection, encode(saving.after, self.schema))

    def _agrees(self, connection: AgentConnection, row: RunState, state: RunState) -> bool:
        """Return whether a row is a state under an older schema, loaded as one of today."""
        rows = read_kept(connection, state.run_id, self.schema, version=state.version)
        return any(kept.state == state and agree(row, kept, self.schema) for kept in rows)


def create_archive(connection: AgentConnection) -> None:
    """Create the table of kept checkpoints where it is missing, and guard its runs."""
    with connection:
        for statement in (TABLE, GUARD):
            connection.execute(statement)


def put(connection: AgentConnection, stored: StoredCheckpoint) -> None:
    """Put a checkpoint into the archive as it is, whatever else is kept of its version."""
    # A row with its checksum and other bytes is this one, damaged: that one goes.
    connection.execute(
        """REPLACE INTO run_checkpoints
        VALUES (NULL, :run_id, :version, :schema_version, :compression, :body, :sha256)""",
        vars(stored),
    )


def read_kept(
    connection: AgentConnection, run_id: str, schema: ContextSchema, *, version: int | None = None
) -> Iterator[Kept]:
    """Yield the kept checkpoints of a run, highest version first; with `version` those of one."""
    for place, stored in _rows(connection, run_id, version):
        try:
            yield Kept(place, stored.version, stored.schema_version, decode(stored, schema))
        except CheckpointError as error:
            whole = digest(stored) == stored.sha256
            schema_version = stored.schema_version if whole else 0
            yield Kept(place, stored.version, schema_version, None, str(error))


def read_archive(
    connection: AgentConnection, run_id: str, *, version: int | None = None
) -> list[StoredCheckpoint]:
    """Return the rows of a run's archive as they are, none decoded yet; see `read_kept`."""
    return [stored for _, stored in _rows(connection, run_id, version)]


def agree(row: RunState, kept: Kept, schema: ContextSchema) -> bool:
    """Return whether a row of `agent_runs` is what was kept; under an older schema, as then."""
    if row == kept.state:
        return True
    try:
        context = to_json(schema.upcast(row.context, kept.schema_version))
    except (CheckpointError, ValueError):
        return False
    return replace(row, context_json=context) == kept.state


def is_log(connection: AgentConnection, run_id: str) -> bool:
    """Return whether a run is kept as a log (`patterns`): its row in `agent_runs` is no state."""
    find = "SELECT 1 FROM run_log WHERE run_id = ?"
    there = has_table(connection, "run_log")
    return there and connection.execute(find, (run_id,)).fetchone() is not None


def _rows(
    connection: AgentConnection, run_id: str, version: int | None
) -> list[tuple[int, StoredCheckpoint]]:
    found = []
    values = (require_text("run_id", run_id), version, version)
    for row in connection.execute(ROWS, values).fetchall():
        place, number, schema_version, body, *texts = row
        compression, sha256 = (text.decode("utf-8", "replace") for text in texts)
        stored = StoredCheckpoint(run_id, number, schema_version, compression, body, sha256)
        found.append((place, stored))
    return found


def _conflict(state: RunState, how: str) -> CheckpointConflictError:
    return CheckpointConflictError(
        f"version {state.version} of {state.run_id} is {how} with another content than this"
        " session has: the file was replaced under it, perhaps by a backup. Recover the run"
    )
