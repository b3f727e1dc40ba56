"""The archive: every checkpoint of a run, with its checksum, beside the current one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from lesson_lib.checkpoints import schema
from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, digest, encode
from lesson_lib.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointSizeError,
    InvalidStateError,
    JSONValueError,
    StorageError,
    TransactionError,
)
from lesson_lib.json_text import JSONValue, to_json
from lesson_lib.model import RunState, require_text
from lesson_lib.stores.sqlite import AgentConnection, write_checkpoint
from lesson_lib.stores.sqlite.connection import is_locked

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
# By the index first: a row whose own name or version is damaged is still found, and judged.
WHERE_THEY_ARE = """SELECT checkpoint_id, version FROM run_checkpoints
    INDEXED BY sqlite_autoindex_run_checkpoints_1
    WHERE run_id = ? AND version BETWEEN coalesce(?, -9e999) AND coalesce(?, 9e999)
    ORDER BY version DESC, checkpoint_id DESC"""
# By the row itself: the index has copies of its values, which would hide a changed byte.
ROW = """SELECT run_id, version, schema_version, compression, body, sha256
    FROM run_checkpoints NOT INDEXED WHERE checkpoint_id = ?"""
REPLACED = "the file was replaced under it, perhaps by a backup. Recover the run"
UNREADABLE = "SQLite cannot read its row from the file"


@dataclass(frozen=True)
class Kept:
    """A row of the archive: its place, the version the index says, and what it holds.

    `state` is None where the row cannot be trusted; `problem` says why. `schema_version` is 0
    where its bytes are not those that were stored.
    """

    checkpoint_id: int
    version: int
    schema_version: int
    state: RunState | None
    problem: str = ""


def create_archive(connection: AgentConnection) -> None:
    """Create the table of kept checkpoints where it is missing, and guard its runs."""
    with connection:
        for statement in (TABLE, GUARD):
            connection.execute(statement)


def require_checkpoints(connection: AgentConnection, run_id: str) -> None:
    """Do nothing for a run that is kept by checkpoints.

    Raises:
        InvalidStateError: It is kept as a log (lesson 11): its row in `agent_runs` is no state.
    """
    if is_log(connection, run_id):
        raise InvalidStateError(f"{run_id} is kept as a log: its state comes from a replay")


def is_log(connection: AgentConnection, run_id: str) -> bool:
    """Return whether a run is kept as a log."""
    there = "SELECT 1 FROM sqlite_schema WHERE name = 'run_log'"
    find = "SELECT 1 FROM run_log WHERE run_id = ?"
    return bool(
        connection.execute(there).fetchone() and connection.execute(find, (run_id,)).fetchone()
    )


def keep(connection: AgentConnection, state: RunState) -> None:
    """Keep a state in the archive, inside the caller's transaction; once is enough.

    Raises:
        CheckpointConflictError: The archive has this version of the run with another content.
        CheckpointSizeError, InvalidStateError: See `codec.encode`.
        StorageError: A damaged row is in the way, and cannot be mended.
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError("keep writes inside the caller's `with connection:` block")
    _keep(connection, encode(state))


def put(connection: AgentConnection, stored: StoredCheckpoint) -> None:
    """Put a checkpoint into the archive as it is, whatever else is kept of its version."""
    # A row with its checksum and other bytes is this one, damaged: it gets the right bytes again.
    connection.execute(
        """INSERT INTO run_checkpoints
        (run_id, version, schema_version, compression, body, sha256)
        VALUES (:run_id, :version, :schema_version, :compression, :body, :sha256)
        ON CONFLICT (run_id, version, sha256) DO UPDATE SET
        schema_version = excluded.schema_version, compression = excluded.compression,
        body = excluded.body""",
        vars(stored),
    )


def save_kept(
    connection: AgentConnection,
    state: RunState,
    *,
    session: str,
    action: str,
    next_action: str | None,
    context: Mapping[str, JSONValue],
) -> RunState:
    """Save the next checkpoint as `save_checkpoint` does, and keep it in the archive with it.

    The state it follows is kept too where it is missing, as that of a new run is, unless it does
    not fit into the archive. Arguments, result and errors are those of `save_checkpoint`, and
    those of `keep`; CheckpointConflictError as well where `agent_runs` has this version with
    another content. Nothing changed then.
    """
    with connection:
        return write_kept(
            connection,
            state,
            session=session,
            action=action,
            next_action=next_action,
            context=context,
        )


def write_kept(
    connection: AgentConnection,
    state: RunState,
    *,
    session: str,
    action: str,
    next_action: str | None,
    context: Mapping[str, JSONValue],
) -> RunState:
    """Write what `save_kept` saves, inside the caller's transaction.

    Raises:
        TransactionError: No transaction is open.
    """
    state.require_unfinished()
    new = following(state, next_action, context)
    stored = encode(new)
    # The archive first: the caller may catch what is raised, and go on in his block.
    if _is_stored(connection, state):
        with suppress(CheckpointSizeError, InvalidStateError, JSONValueError):
            keep(connection, state)  # may be of an older schema, or too large, and saved otherwise
        _keep(connection, stored)
    return write_checkpoint(
        connection,
        state,
        session=session,
        action=action,
        next_action=next_action,
        context=context,
    )


def following(
    state: RunState, next_action: str | None, context: Mapping[str, JSONValue]
) -> RunState:
    """Return the state that a save after `state` leads to."""
    return replace(
        state,
        status="completed" if next_action is None else "running",
        next_action=next_action,
        context_json=to_json(dict(context), "context"),
        version=state.version + 1,
    )


def agree(row: RunState, state: RunState, schema_version: int) -> bool:
    """Return whether a row of `agent_runs` is a state; one of an older schema as it was then."""
    if row == state:
        return True
    try:
        found = to_json(schema.upcast(row.context, schema_version))
        wanted = to_json(dict(state.context))
    except (CheckpointError, JSONValueError):
        return False
    return replace(row, context_json=found) == replace(state, context_json=wanted)


def read_kept(
    connection: AgentConnection,
    run_id: str,
    *,
    version: int | None = None,
    lost: frozenset[int] = frozenset(),
) -> Iterator[Kept]:
    """Yield the kept checkpoints of a run, highest version first, each read and decoded by itself.

    Args:
        connection: An open connection.
        run_id: The run.
        version: Only those of this version; None for all.
        lost: The places not to look at. SQLite writes no more in a transaction that met a
            damaged page, so who wants to write has looked for them before.
    """
    for place, said in _places(connection, run_id, version):
        problem, schema_version = UNREADABLE, 0
        stored = None if place in lost else _read(connection, place)
        if stored is not None:
            try:
                state = decode(stored)
                if (state.run_id, state.version) == (run_id, said):
                    yield Kept(place, said, stored.schema_version, state)
                    continue
                problem = f"its index entry differs: its row says {state.run_id}, {state.version}"
            except CheckpointError as error:
                problem = str(error)
                if type(stored.body) is bytes and digest(stored) == stored.sha256:
                    schema_version = stored.schema_version
            except MemoryError:
                pass  # as if it could not be read
        yield Kept(place, said, schema_version, None, problem)


def read_archive(
    connection: AgentConnection, run_id: str, *, version: int | None = None
) -> list[StoredCheckpoint]:
    """Return the rows of a run's archive as they are, highest version first, none decoded yet.

    A row that SQLite cannot read is not among them; `read_kept` tells of it. For the arguments
    see there.
    """
    rows = (_read(connection, place) for place, _ in _places(connection, run_id, version))
    return [stored for stored in rows if stored is not None]


def _places(connection: AgentConnection, run_id: str, version: int | None) -> list[tuple[int, int]]:
    values = (require_text("run_id", run_id), version, version)
    return [(place, said) for place, said in connection.execute(WHERE_THEY_ARE, values).fetchall()]


def _read(connection: AgentConnection, place: int) -> StoredCheckpoint | None:
    """Return a row as it is, whatever the types of its values; None where it cannot be read."""
    try:
        row = connection.execute(ROW, (place,)).fetchone()
    except (StorageError, sqlite3.Error, MemoryError) as error:
        if isinstance(error, StorageError) and is_locked(error):
            raise
        return None
    return None if row is None else StoredCheckpoint(*row)


def _keep(connection: AgentConnection, stored: StoredCheckpoint) -> None:
    ours = decode(stored)  # its JSON text may be written otherwise than the caller's
    same = _compared(connection, ours)
    if False in same:
        raise CheckpointConflictError(
            f"version {ours.version} of {ours.run_id} is kept with another content than this"
            f" session has: {REPLACED}"
        )
    if True in same:
        return
    try:
        put(connection, stored)
        if same and True not in _compared(connection, ours):
            # The index led to a row whose own name is damaged; now it calls that row as it is.
            connection.execute("REINDEX run_checkpoints")
            put(connection, stored)
    except sqlite3.IntegrityError as error:
        if not same:  # there is no such run
            raise
        raise StorageError(
            f"{connection.path} is damaged where version {ours.version} of {ours.run_id} is kept,"
            " and cannot be mended by a save: recover the run"
        ) from error


def _compared(connection: AgentConnection, ours: RunState) -> list[bool | None]:
    """Return for each kept row of a state's version whether it is that state.

    None stands for what cannot be trusted: it contradicts nobody.
    """
    kept = read_kept(connection, ours.run_id, version=ours.version)
    return [None if k.state is None else agree(ours, k.state, k.schema_version) for k in kept]


def _is_stored(connection: AgentConnection, state: RunState) -> bool:
    """Return whether the run is at the version of a state, False where it is not.

    Raises:
        CheckpointConflictError: It is, and with another content.
    """
    row = connection.execute(
        "SELECT * FROM agent_runs WHERE run_id = ? AND version = ?", (state.run_id, state.version)
    ).fetchone()
    if row is None:
        return False
    with suppress(InvalidStateError):  # damaged, so it is not what this session loaded
        found = RunState(**dict(row))
        if any(agree(found, state, version) for version in range(1, schema.CURRENT + 1)):
            return True
    raise CheckpointConflictError(
        f"version {state.version} of {state.run_id} is stored with another content than this"
        f" session has: {REPLACED}"
    )
