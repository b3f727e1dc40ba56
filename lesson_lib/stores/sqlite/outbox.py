"""The outbox: commands for another system, stored with the checkpoint and delivered later."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lesson_lib.errors import (
    CorruptStateError,
    IdempotencyConflictError,
    InvalidStateError,
    TransactionError,
)
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.stores.sqlite.connection import AgentConnection, utc_text
from lesson_lib.stores.sqlite.intents import request_text, require_key
from lesson_lib.stores.sqlite.records import record_event

STATUSES = ("waiting", "delivered", "dead", "skipped")
STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS outbox_commands (
    idempotency_key TEXT NOT NULL PRIMARY KEY,
    run_id          TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    position        INTEGER NOT NULL CHECK (position >= 1),   -- the order within the run
    tool_name       TEXT NOT NULL,
    request_json    TEXT NOT NULL CHECK (json_valid(request_json)),
    status          TEXT NOT NULL CHECK (status IN ('waiting', 'delivered', 'dead', 'skipped')),
    attempts        INTEGER NOT NULL CHECK (attempts >= 0),
    due_at_utc      TEXT NOT NULL,
    answer_json     TEXT CHECK (answer_json IS NULL OR json_valid(answer_json)),
    last_error      TEXT,
    first_try_utc   TEXT,               -- from here on the service may know the key
    token           INTEGER NOT NULL,   -- grows with each claim and each decision
    UNIQUE (run_id, position),
    CHECK ((answer_json IS NOT NULL) = (status = 'delivered'))
) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS commands_keep_their_run BEFORE DELETE ON agent_runs
    WHEN EXISTS (SELECT 1 FROM outbox_commands
        WHERE run_id = OLD.run_id AND status IN ('waiting', 'dead'))
    BEGIN SELECT RAISE(ABORT, 'its outbox holds commands that are not delivered yet'); END""",
)
# Only the oldest unfinished command of a run is due, so a run's commands stay in order. A time
# further away than a key lives was written by a clock that has been set back since: it counts as
# over.
DUE = """SELECT * FROM outbox_commands AS this WHERE status = 'waiting'
    AND (due_at_utc <= ? OR due_at_utc > ?)
    AND NOT EXISTS (SELECT 1 FROM outbox_commands AS earlier WHERE earlier.run_id = this.run_id
        AND earlier.position < this.position AND earlier.status IN ('waiting', 'dead'))
    ORDER BY due_at_utc, run_id LIMIT 1"""


@dataclass(frozen=True)
class Command:
    """One row of `outbox_commands`, as its worker claimed it: `attempts` counts this one too."""

    idempotency_key: str
    run_id: str
    position: int
    tool_name: str
    request: JSONObject
    status: str
    attempts: int
    answer: JSONValue
    last_error: str | None
    token: int


def create_outbox(connection: AgentConnection) -> None:
    """Create the table of commands where it is missing."""
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)


def put_command(
    connection: AgentConnection, *, run_id: str, key: str, tool_name: str, request: JSONObject
) -> None:
    """Add a command to a run, inside the caller's transaction: that of the checkpoint.

    Args:
        connection: An open connection, inside `with connection:`.
        run_id: The run; it must exist. Its commands are delivered in the order they are put.
        key: The idempotency key that every delivery of this command comes with; see `require_key`.
        tool_name: What is called.
        request: What it is called with, a JSON object.

    Raises:
        TransactionError: No transaction is open.
        IdempotencyConflictError: A command with this key was put before.
        InvalidStateError: The key cannot be sent, or the request is no JSON object.
        sqlite3.IntegrityError: There is no such run.
    """
    if not connection.in_transaction:
        raise TransactionError("put_command writes inside the caller's `with connection:` block")
    if _row(connection, require_key(key)) is not None:
        raise IdempotencyConflictError(f"the outbox holds a command with the key {key} already")
    connection.execute(
        """INSERT INTO outbox_commands
        SELECT ?, ?, coalesce(max(position), 0) + 1, ?, ?, 'waiting', 0, ?, NULL, NULL, NULL, 0
        FROM outbox_commands WHERE run_id = ?""",
        (
            key,
            run_id,
            require_text("tool_name", tool_name),
            request_text(request),
            utc_text(connection.clock()),
            run_id,
        ),
    )


def claim_command(
    connection: AgentConnection,
    *,
    claim: timedelta,
    max_attempts: int,
    key_lives: timedelta,
    session: str,
) -> Command | None:
    """Take the next command that is due, and count the attempt before it is made.

    A command whose attempts are used up becomes a dead letter instead: so it ends even where each
    attempt kills its worker. So does one whose key the service may have forgotten since the first
    attempt, as the repeat could do everything again; and one that cannot be decoded.

    Args:
        connection: An open connection, outside of a transaction.
        claim: How long no other worker gets it; longer than a request may take.
        max_attempts: How often to try.
        key_lives: How long the service surely remembers a key; see `intents.settle`.
        session: The worker.

    Raises:
        InvalidStateError: The claim is negative.
    """
    if claim < timedelta():
        raise InvalidStateError(f"a claim must not be negative, as {claim} is")
    with connection:
        now = connection.clock()  # inside the transaction: waiting for its lock may have taken long
        due = (utc_text(now), utc_text(now + key_lives))
        while (row := connection.execute(DUE, due).fetchone()) is not None:
            key = row["idempotency_key"]
            reason = _why_not(row, max_attempts, now, key_lives)
            if reason is None:
                connection.execute(
                    """UPDATE outbox_commands SET attempts = attempts + 1, token = token + 1,
                    due_at_utc = ?, first_try_utc = coalesce(first_try_utc, ?)
                    WHERE idempotency_key = ?""",
                    (utc_text(now + claim), utc_text(now), key),
                )
                return _command(_row(connection, key))
            _bury(connection, row, session, reason)
    return None


def _why_not(
    row: sqlite3.Row, max_attempts: int, now: datetime, key_lives: timedelta
) -> str | None:
    try:
        _command(row)
    except CorruptStateError as error:
        return str(error)
    if row["attempts"] >= max_attempts:
        return row["last_error"] or "its worker died at each attempt"
    first = row["first_try_utc"]
    if first and not timedelta() <= now - datetime.fromisoformat(first) < key_lives:
        return "the service may have forgotten its key: a person must look whether it was done"
    return None


def mark_delivered(
    connection: AgentConnection, command: Command, *, session: str, answer: JSONValue
) -> None:
    """Store the service's answer with the event `command_delivered`.

    What was delivered stays so, whoever was faster or has decided otherwise meanwhile.
    """
    with connection:
        updated = connection.execute(
            """UPDATE outbox_commands SET status = 'delivered', answer_json = ?, last_error = NULL
            WHERE idempotency_key = ? AND status <> 'delivered'""",
            (to_json(answer, "answer"), command.idempotency_key),
        )
        if updated.rowcount == 1:
            row = _row(connection, command.idempotency_key)
            _record(connection, "command_delivered", row, session)


def mark_failed(
    connection: AgentConnection,
    command: Command,
    *,
    session: str,
    error: str,
    retry_in: timedelta | None,
) -> None:
    """Store that this attempt failed: try again later, or keep the command as a dead letter.

    Nothing happens if another worker has claimed the command since, a person has decided, or it
    is gone.

    Args:
        connection: An open connection, outside of a transaction.
        command: As it was claimed.
        session: The worker.
        error: What went wrong.
        retry_in: When to try again; None: never by itself.
    """
    with connection:
        row = _row(connection, command.idempotency_key)
        if row is None or (row["status"], row["token"]) != ("waiting", command.token):
            return
        if retry_in is None:
            _bury(connection, row, session, error)
        else:
            connection.execute(
                """UPDATE outbox_commands SET due_at_utc = ?, last_error = ?
                WHERE idempotency_key = ?""",
                (utc_text(connection.clock() + retry_in), error, command.idempotency_key),
            )


def decide_dead_letter(
    connection: AgentConnection, key: str, decision: str, *, person: str
) -> None:
    """Let a person end the wait: `retry` a dead letter, with all attempts anew, or `skip` it.

    Until then the later commands of its run are held back. A retry keeps the key and the time of
    the first attempt: once the service may have forgotten the key, `claim_command` does not send
    it, and it is a dead letter again. Then a person finds out whether it was done, skips it, and
    if it was not puts a new command with a new key.

    Raises:
        InvalidStateError: There is no dead letter with this key, or no such decision.
    """
    statuses = {"retry": "waiting", "skip": "skipped"}
    if decision not in statuses:
        raise InvalidStateError(f"a dead letter is for {' or '.join(statuses)}, not {decision!r}")
    with connection:
        updated = connection.execute(
            """UPDATE outbox_commands
            SET status = ?, attempts = 0, token = token + 1, due_at_utc = ?
            WHERE idempotency_key = ? AND status = 'dead'""",
            (statuses[decision], utc_text(connection.clock()), require_text("key", key)),
        )
        if updated.rowcount != 1:
            raise InvalidStateError(f"the outbox holds no dead letter {key!r}")
        row = _row(connection, key)
        _record(connection, f"command_{decision}", row, require_text("person", person))


def commands(connection: AgentConnection, status: str | None = None) -> list[Command]:
    """Return the commands, of one status or all, by run and in order.

    Raises:
        InvalidStateError: There is no such status.
        CorruptStateError: One cannot be decoded; the message names its key.
    """
    if status not in (None, *STATUSES):
        raise InvalidStateError(f"a command is {', '.join(STATUSES)}, not {status!r}")
    rows = connection.execute(
        """SELECT * FROM outbox_commands WHERE status = coalesce(?, status)
        ORDER BY run_id, position""",
        (status,),
    ).fetchall()
    return [_command(row) for row in rows]


def _bury(connection: AgentConnection, row: sqlite3.Row, session: str, error: str) -> None:
    connection.execute(
        "UPDATE outbox_commands SET status = 'dead', last_error = ? WHERE idempotency_key = ?",
        (error, row["idempotency_key"]),
    )
    _record(connection, "command_dead", row, session)


def _record(connection: AgentConnection, event: str, row: sqlite3.Row, session: str) -> None:
    record_event(
        connection,
        run_id=row["run_id"],
        session=session,
        event_type=event,
        action=row["tool_name"],
        detail={"key": row["idempotency_key"], "attempts": row["attempts"]},
    )


def _row(connection: AgentConnection, key: str) -> Any:
    return connection.execute(
        "SELECT * FROM outbox_commands WHERE idempotency_key = ?", (key,)
    ).fetchone()


def _command(row: sqlite3.Row) -> Command:
    request, answer = row["request_json"], row["answer_json"]
    try:
        request, answer = from_json(request), None if answer is None else from_json(answer)
        to_json(request)  # a client will need its text
    except ValueError as error:
        raise CorruptStateError(f"{row['idempotency_key']} cannot be decoded: {error}") from None
    return Command(
        row["idempotency_key"],
        row["run_id"],
        row["position"],
        row["tool_name"],
        request,
        row["status"],
        row["attempts"],
        answer,
        row["last_error"],
        row["token"],
    )
