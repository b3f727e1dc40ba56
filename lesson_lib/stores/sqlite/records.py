"""Runs and their events: a checkpoint and the event that tells of it are one write."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from lesson_lib.errors import (
    CorruptStateError,
    InvalidStateError,
    RunExistsError,
    StaleVersionError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue, to_json
from lesson_lib.model import Event, RunState, require_text
from lesson_lib.stores.sqlite.connection import AgentConnection, utc_text


def record_event(
    connection: AgentConnection,
    *,
    run_id: str,
    session: str,
    event_type: str,
    action: str,
    detail: Mapping[str, JSONValue] | None = None,
) -> None:
    """Append one event to a run, inside the caller's transaction.

    Args:
        connection: An open connection, inside `with connection:`.
        run_id: The run; it must exist.
        session: Which process life writes this, such as `session-1`.
        event_type: Such as `checkpoint_saved`.
        action: The action it is about.
        detail: What else to keep, a JSON object. Never ticket text or tool results.

    Raises:
        TransactionError: No transaction is open.
        sqlite3.IntegrityError: There is no such run.
    """
    if not connection.in_transaction:
        raise TransactionError("record_event writes inside the caller's `with connection:` block")
    now = utc_text(connection.clock())
    connection.execute(
        """INSERT INTO agent_events
        SELECT :run_id, coalesce(max(sequence), 0) + 1, :session, :type, :action, :detail, :now
        FROM agent_events WHERE run_id = :run_id""",
        {
            "run_id": require_text("run_id", run_id),
            "session": require_text("session", session),
            "type": require_text("event_type", event_type),
            "action": require_text("action", action),
            "detail": to_json(dict(detail or {}), "detail"),
            "now": now,
        },
    )


def start_run(
    connection: AgentConnection,
    *,
    run_id: str,
    ticket_id: str,
    session: str,
    first_action: str,
    context: Mapping[str, JSONValue],
) -> RunState:
    """Store a new run at version 0 together with its `run_started` event; return its state.

    Raises:
        RunExistsError: A run of this id is stored already: resume that one. Or it was, and has
            expired.
        JSONValueError: The context would not survive the round trip.
    """
    state = RunState(
        run_id, ticket_id, "running", first_action, to_json(dict(context), "context"), version=0
    )
    with connection:
        if connection.execute("SELECT 1 FROM agent_runs WHERE run_id = ?", (run_id,)).fetchone():
            raise RunExistsError(f"the run {run_id} was started before: resume it")
        try:
            connection.execute(
                "INSERT INTO agent_runs VALUES (?, ?, ?, ?, ?, ?)",
                (run_id, ticket_id, state.status, state.next_action, state.context_json, 0),
            )
        except sqlite3.IntegrityError as error:  # a trigger of another table's
            raise RunExistsError(f"the run {run_id} cannot be started: {error}") from error
        record_event(
            connection, run_id=run_id, session=session, event_type="run_started", action="start"
        )
    return state


def load_state(connection: AgentConnection, run_id: str) -> RunState:
    """Return the current checkpoint of a run, checked against its events.

    Raises:
        UnknownRunError: There is no such run.
        CorruptStateError: The row and its events contradict each other, or do not decode.
    """
    row = connection.execute(
        """SELECT agent_runs.*, count(sequence) AS events, max(sequence) AS last_sequence,
            count(*) FILTER (WHERE event_type = 'checkpoint_saved') AS checkpoints
        FROM agent_runs LEFT JOIN agent_events USING (run_id)
        WHERE run_id = ? GROUP BY run_id""",
        (require_text("run_id", run_id),),
    ).fetchone()
    if row is None:
        raise UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")
    if row["events"] != row["last_sequence"]:
        raise CorruptStateError(
            f"the events of {run_id} have a gap: {row['events']} are there, the last has the"
            f" sequence {row['last_sequence']}. Restore the database from a backup"
        )
    if row["checkpoints"] != row["version"]:
        raise CorruptStateError(
            f"{run_id} is at version {row['version']}, its events tell of {row['checkpoints']}"
            " checkpoints. Restore the database from a backup"
        )
    try:
        return RunState(**{name: row[name] for name in RunState.__dataclass_fields__})
    except InvalidStateError as error:
        raise CorruptStateError(
            f"the row of {run_id} cannot be trusted: {error}. Restore the database from a backup"
        ) from error


def save_checkpoint(
    connection: AgentConnection,
    state: RunState,
    *,
    session: str,
    action: str,
    next_action: str | None,
    context: Mapping[str, JSONValue],
) -> RunState:
    """Save the next checkpoint and its `checkpoint_saved` event in a transaction of its own.

    Args:
        connection: An open connection, outside of a transaction.
        state: The checkpoint this one follows, as this process loaded it.
        session: Which process life writes this.
        action: The action that was completed.
        next_action: The action to do next; None completes the run.
        context: The whole new context.

    Returns:
        The new state, one version on. `state` itself never changes.

    Raises:
        RunCompletedError: `state` is a finished run. Nothing changed.
        StaleVersionError: The run is no longer at `state.version`. Nothing changed.
        UnknownRunError: There is no such run.
        JSONValueError: The context would not survive the round trip. Nothing changed.
    """
    with connection:
        return write_checkpoint(
            connection,
            state,
            session=session,
            action=action,
            next_action=next_action,
            context=context,
        )


def write_checkpoint(
    connection: AgentConnection,
    state: RunState,
    *,
    session: str,
    action: str,
    next_action: str | None,
    context: Mapping[str, JSONValue],
) -> RunState:
    """Write what `save_checkpoint` saves, inside the caller's transaction.

    What else must be true together with the checkpoint goes into the same `with connection:`
    block. Arguments, result and errors are those of `save_checkpoint`.

    Raises:
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError("write_checkpoint writes inside the caller's `with connection:`")
    state.require_unfinished()
    new = RunState(
        run_id=state.run_id,
        ticket_id=state.ticket_id,
        status="completed" if next_action is None else "running",
        next_action=next_action,
        context_json=to_json(dict(context), "context"),
        version=state.version + 1,
    )
    updated = connection.execute(
        """UPDATE agent_runs SET status = ?, next_action = ?, context_json = ?, version = ?
        WHERE run_id = ? AND version = ?""",
        (new.status, new.next_action, new.context_json, new.version, new.run_id, state.version),
    )
    if updated.rowcount != 1:
        found = load_state(connection, state.run_id).version
        raise StaleVersionError(
            f"{state.run_id} is at version {found}, this worker loaded version"
            f" {state.version}: load the state again"
        )
    record_event(
        connection,
        run_id=new.run_id,
        session=session,
        event_type="checkpoint_saved",
        action=action,
        detail={"version": new.version},
    )
    return new


def read_events(connection: AgentConnection, run_id: str) -> list[Event]:
    """Return all events of a run in the order of their sequence.

    Raises:
        UnknownRunError: There is no such run.
    """
    rows = connection.execute(
        "SELECT * FROM agent_events WHERE run_id = ? ORDER BY sequence",
        (require_text("run_id", run_id),),
    ).fetchall()
    if not rows:
        raise UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")
    return [Event(**dict(row)) for row in rows]


def unfinished_runs(connection: AgentConnection) -> list[str]:
    """Return the ids of the runs that a new process should resume, in the order of their ids."""
    rows = connection.execute(
        "SELECT run_id FROM agent_runs WHERE status <> 'completed' ORDER BY run_id"
    ).fetchall()
    return [row["run_id"] for row in rows]


def delete_run(connection: AgentConnection, run_id: str) -> None:
    """Delete a completed run with its events and tool effects, all or nothing.

    Raises:
        UnknownRunError: There is no such run.
        InvalidStateError: The run is not completed, so its tool effects may still be asked for;
            or a row of another table still needs it.
    """
    require_text("run_id", run_id)
    with connection:
        row = connection.execute(
            "SELECT status FROM agent_runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        if row is None:
            raise UnknownRunError(f"{connection.path} holds no run {run_id!r}")
        if row["status"] != "completed":
            raise InvalidStateError(f"{run_id} is still {row['status']}: let it finish first")
        try:
            for table in ("tool_effects", "agent_events", "agent_runs"):
                connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        except sqlite3.IntegrityError as error:
            raise InvalidStateError(f"{run_id} is still needed: {error}") from error
