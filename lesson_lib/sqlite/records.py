"""Runs and their events: a checkpoint and the event that tells of it are one write."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from lesson_lib.clock import utc_text
from lesson_lib.errors import (
    CorruptStateError,
    InvalidStateError,
    RunExistsError,
    StaleVersionError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue, to_json
from lesson_lib.model import Event, RunState, Step, require_text
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.store import Rider, Saving, prepared


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
    connection: AgentConnection, state: RunState, *, session: str, riders: Sequence[Rider] = ()
) -> RunState:
    """Store a new run together with its `run_started` event; return its state.

    Args:
        connection: An open connection, outside of a transaction.
        state: What the run begins with, at version 0; see `RunState.begin`.
        session: Which process life starts it.
        riders: What must be true together with it.

    Raises:
        RunExistsError: A run of this id is stored already: resume that one. Or it was, and has
            expired.
        InvalidStateError: The state is not one that a run begins with.
    """
    if state.version != 0:
        raise InvalidStateError(f"{state.run_id} begins at version 0, not {state.version}")
    saving = prepared(Saving(None, None, state, session, tuple(riders)))
    new = saving.after
    with connection:
        if is_stored(connection, new.run_id):
            raise RunExistsError(f"the run {new.run_id} was started before: resume it")
        for rider in saving.riders:
            rider.check(connection, saving)
        try:
            connection.execute(
                """INSERT INTO agent_runs
                VALUES (:run_id, :ticket_id, :status, :next_action, :context_json, :version)""",
                vars(new),
            )
        except sqlite3.IntegrityError as error:  # a trigger of another table's
            raise RunExistsError(f"the run {new.run_id} cannot be started: {error}") from error
        record_event(
            connection, run_id=new.run_id, session=session, event_type="run_started", action="start"
        )
        for rider in saving.riders:
            rider.write(connection, saving)
    return new


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
        raise unknown_run(connection, run_id)
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
    step: Step,
    *,
    session: str,
    riders: Sequence[Rider] = (),
) -> RunState:
    """Save the next checkpoint and all that belongs to it in a transaction of its own.

    Args:
        connection: An open connection, outside of a transaction.
        state: The checkpoint this one follows, as this process loaded it. It never changes.
        step: What was done, and what comes next.
        session: Which process life writes this.
        riders: What must be true together with it, besides the step's own riders.

    Raises:
        RunCompletedError: `state` is a finished run. Nothing changed.
        StaleVersionError: The run is no longer at `state.version`. Nothing changed.
        UnknownRunError: There is no such run.
        JSONValueError: The context would not survive the round trip. Nothing changed.
    """
    riders = (*riders, *step.riders)
    saving = prepared(Saving(state, step, state.after(step), session, riders))
    with connection:
        return write_prepared(connection, saving, step.action)


def write_checkpoint(
    connection: AgentConnection,
    state: RunState,
    step: Step,
    *,
    session: str,
    riders: Sequence[Rider] = (),
) -> RunState:
    """Write what `save_checkpoint` saves, inside the caller's transaction.

    Arguments, result and errors are those of `save_checkpoint`. A rider that takes its time, such
    as one that asks a model for a summary, keeps all other writers waiting here.

    Raises:
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError("write_checkpoint writes inside the caller's `with connection:`")
    riders = (*riders, *step.riders)
    saving = prepared(Saving(state, step, state.after(step), session, riders))
    return write_prepared(connection, saving, step.action)


def write_prepared(connection: AgentConnection, saving: Saving, action: str) -> RunState:
    """Write a checkpoint, its event and what rides with them, inside the caller's transaction."""
    new, loaded = saving.after, saving.after.version - 1
    for rider in saving.riders:
        rider.check(connection, saving)
    updated = connection.execute(
        """UPDATE agent_runs SET status = ?, next_action = ?, context_json = ?, version = ?
        WHERE run_id = ? AND version = ?""",
        (new.status, new.next_action, new.context_json, new.version, new.run_id, loaded),
    )
    if updated.rowcount != 1:
        found = load_state(connection, new.run_id).version
        raise StaleVersionError(
            f"{new.run_id} is at version {found}, this worker loaded version {loaded}: load the"
            " state again"
        )
    record_event(
        connection,
        run_id=new.run_id,
        session=saving.session,
        event_type="checkpoint_saved",
        action=action,
        detail={"version": new.version},
    )
    for rider in saving.riders:
        rider.write(connection, saving)
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
        raise unknown_run(connection, run_id)
    return [Event(**dict(row)) for row in rows]


def unfinished_runs(connection: AgentConnection) -> list[str]:
    """Return the ids of the runs that a new process should resume, in the order of their ids."""
    rows = connection.execute(
        "SELECT run_id FROM agent_runs WHERE status <> 'completed' ORDER BY run_id"
    ).fetchall()
    return [row["run_id"] for row in rows]


def require_run(connection: AgentConnection, run_id: str) -> None:
    """Do nothing for a run that is stored.

    Raises:
        UnknownRunError: There is no such run.
    """
    if not is_stored(connection, run_id):
        raise unknown_run(connection, run_id)


def is_stored(connection: AgentConnection, run_id: str) -> bool:
    """Return whether there is a run of this id."""
    row = connection.execute("SELECT 1 FROM agent_runs WHERE run_id = ?", (run_id,)).fetchone()
    return row is not None


def has_table(connection: AgentConnection, name: str) -> bool:
    """Return whether the database has a table of this name: not every lesson creates each."""
    row = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    return row is not None


def unknown_run(connection: AgentConnection, run_id: str) -> UnknownRunError:
    """Return the error that says that a run is not stored."""
    return UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")


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
            raise unknown_run(connection, run_id)
        if row["status"] != "completed":
            raise InvalidStateError(f"{run_id} is still {row['status']}: let it finish first")
        try:
            for table in ("tool_effects", "agent_events", "agent_runs"):
                connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        except sqlite3.IntegrityError as error:
            raise InvalidStateError(f"{run_id} is still needed: {error}") from error
