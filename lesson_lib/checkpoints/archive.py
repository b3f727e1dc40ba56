"""The archive: every checkpoint of a run, with its checksum, beside the current one."""

from __future__ import annotations

from collections.abc import Mapping

from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, encode
from lesson_lib.errors import CheckpointConflictError, CheckpointError, TransactionError
from lesson_lib.json_text import JSONValue
from lesson_lib.model import RunState, require_text
from lesson_lib.stores.sqlite import AgentConnection, write_checkpoint

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


def create_archive(connection: AgentConnection) -> None:
    """Create the table of kept checkpoints where it is missing."""
    with connection:
        connection.execute(TABLE)


def keep(connection: AgentConnection, state: RunState) -> None:
    """Keep a state in the archive, inside the caller's transaction; once is enough.

    Raises:
        CheckpointConflictError: The archive has this version of the run with another content.
        CheckpointSizeError, InvalidStateError: See `codec.encode`.
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError("keep writes inside the caller's `with connection:` block")
    stored = encode(state)
    ours = decode(stored)  # its JSON text may be written otherwise than that of `state`
    others = []
    for kept in read_archive(connection, state.run_id, version=state.version):
        try:
            found = decode(kept)
        except CheckpointError:
            continue  # what cannot be trusted contradicts nobody
        if found == ours:
            return
        others.append(kept)
    if others:
        raise CheckpointConflictError(
            f"version {state.version} of {state.run_id} is kept with another content than this"
            " session has: the file was replaced under it, perhaps by a backup. Recover the run"
        )
    put(connection, stored)


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

    The state it follows is kept too where it is missing, as that of a new run is. Arguments,
    result and errors are those of `save_checkpoint`; and those of `keep`. Nothing changed then.
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
    new = write_checkpoint(
        connection,
        state,
        session=session,
        action=action,
        next_action=next_action,
        context=context,
    )
    keep(connection, state)
    keep(connection, new)
    return new


def read_archive(
    connection: AgentConnection, run_id: str, *, version: int | None = None
) -> list[StoredCheckpoint]:
    """Return the kept checkpoints of a run, highest version first, none of them decoded yet.

    Args:
        connection: An open connection.
        run_id: The run.
        version: Only those of this version; None for all.
    """
    rows = connection.execute(
        """SELECT run_id, version, schema_version, compression, body, sha256
        FROM run_checkpoints WHERE run_id = ? AND (? IS NULL OR version = ?)
        ORDER BY version DESC, checkpoint_id DESC""",
        (require_text("run_id", run_id), version, version),
    ).fetchall()
    return [StoredCheckpoint(**dict(row)) for row in rows]
