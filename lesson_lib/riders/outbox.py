"""The outbox: commands for another system, stored with the checkpoint and delivered later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lesson_lib.clock import utc_text
from lesson_lib.errors import IdempotencyConflictError, InvalidStateError
from lesson_lib.json_text import JSONObject, JSONValue, to_json
from lesson_lib.model import require_text
from lesson_lib.riders.keyed_rows import RemoteCall, put_once, read_rows, request_text
from lesson_lib.sqlite.connection import AgentConnection
from lesson_lib.store import Rider, Saving

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
CLAIM = """UPDATE outbox_commands SET attempts = attempts + 1, token = token + 1,
    due_at_utc = ?, first_try_utc = coalesce(first_try_utc, ?)
    WHERE idempotency_key = ? RETURNING *"""
DECIDE = """UPDATE outbox_commands SET status = ?, attempts = 0, token = token + 1, due_at_utc = ?
    WHERE idempotency_key = ? AND status = 'dead' RETURNING *"""


@dataclass(frozen=True)
class Command(RemoteCall):
    """One row of `outbox_commands`. Its token says which claim of it this is."""

    position: int
    due_at_utc: str
    attempts: int = 0
    last_error: str | None = None
    first_try_utc: str | None = None
    token: int = 0


@dataclass(frozen=True)
class PutCommand(Rider):
    """Puts a command into the outbox together with a checkpoint; see `put_command`."""

    key: str
    tool_name: str
    request: JSONObject

    def write(self, connection: AgentConnection, saving: Saving) -> None:
        """Put the command."""
        put_command(connection, run_id=saving.after.run_id, **vars(self))


def create_outbox(connection: AgentConnection) -> None:
    """Create the table of commands where it is missing."""
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)


def put_command(
    connection: AgentConnection, *, run_id: str, key: str, tool_name: str, request: JSONObject
) -> None:
    """Add a command to a run, inside the caller's transaction: that of the checkpoint.

    The commands of a run are delivered in the order they are put, each time with the same key.

    Raises:
        IdempotencyConflictError: A command with this key was put before.
        InvalidStateError, JSONValueError: See `request_text`.
        TransactionError: No transaction is open.
    """
    text, now = request_text(key, request), utc_text(connection.clock())
    require_text("tool_name", tool_name)
    last = "SELECT coalesce(max(position), 0) FROM outbox_commands WHERE run_id = ?"
    (position,) = connection.execute(last, (run_id,)).fetchone()
    command = Command(key, run_id, tool_name, text, "waiting", None, position + 1, now)
    if not put_once(connection, "outbox_commands", command):
        raise IdempotencyConflictError(f"the outbox holds a command with the key {key} already")


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
    attempt, as the repeat could do everything again. See `delivery.RetryPolicy`.
    """
    with connection:
        now = connection.clock()  # inside the transaction: waiting for its lock may have taken long
        due = (utc_text(now), utc_text(now + key_lives))
        while found := read_rows(connection, Command, DUE, *due):
            command = found[0]
            reason = _why_not(command, max_attempts, now, key_lives)
            if reason is None:
                times = (utc_text(now + claim), utc_text(now))
                return read_rows(connection, Command, CLAIM, *times, command.idempotency_key)[0]
            _bury(connection, command, session, reason)
    return None


def mark_delivered(
    connection: AgentConnection, command: Command, *, session: str, answer: JSONValue
) -> None:
    """Store the service's answer with the event `command_delivered`.

    What was delivered stays so, whoever was faster or has decided otherwise.
    """
    with connection:
        updated = connection.execute(
            """UPDATE outbox_commands SET status = 'delivered', answer_json = ?, last_error = NULL
            WHERE idempotency_key = ? AND status <> 'delivered'""",
            (to_json(answer, "answer"), command.idempotency_key),
        )
        if updated.rowcount == 1:
            command.tell(connection, "command_delivered", session)


def mark_failed(
    connection: AgentConnection,
    command: Command,
    *,
    session: str,
    error: str,
    retry_in: timedelta | None,
) -> None:
    """Store that this attempt failed: try again later, or where that is None, never by itself.

    Nothing happens if another worker has claimed the command since, or a person has decided.
    """
    with connection:
        due = utc_text(connection.clock() + (retry_in or timedelta()))
        mine = connection.execute(
            """UPDATE outbox_commands SET due_at_utc = ?, last_error = ?
            WHERE idempotency_key = ? AND status = 'waiting' AND token = ?""",
            (due, error, command.idempotency_key, command.token),
        )
        if mine.rowcount == 1 and retry_in is None:
            _bury(connection, command, session, error)


def decide_dead_letter(
    connection: AgentConnection, key: str, decision: str, *, person: str
) -> None:
    """Let a person end the wait: `retry` a dead letter, with all attempts anew, or `skip` it.

    Until then the later commands of its run are held back. A retry keeps the key and the time of
    the first attempt: once the service may have forgotten the key, it is a dead letter again. Then
    a person finds out whether it was done, skips it, and if it was not puts a new command.

    Raises:
        InvalidStateError: There is no dead letter with this key, or no such decision.
    """
    statuses = {"retry": "waiting", "skip": "skipped"}
    if decision not in statuses:
        raise InvalidStateError(f"a dead letter is for {' or '.join(statuses)}, not {decision!r}")
    with connection:
        new = (statuses[decision], utc_text(connection.clock()))
        decided = read_rows(connection, Command, DECIDE, *new, require_text("key", key))
        if not decided:
            raise InvalidStateError(f"the outbox holds no dead letter {key!r}")
        decided[0].tell(connection, f"command_{decision}", require_text("person", person))


def commands(connection: AgentConnection, status: str | None = None) -> list[Command]:
    """Return the commands, all or those `waiting`, `delivered`, `dead` or `skipped`, in order."""
    chosen = "status = coalesce(?, status) ORDER BY run_id, position"
    return read_rows(connection, Command, f"SELECT * FROM outbox_commands WHERE {chosen}", status)


def _why_not(command: Command, most: int, now: datetime, key_lives: timedelta) -> str | None:
    if command.attempts >= most:
        return command.last_error or "its worker died at each attempt"
    first = command.first_try_utc
    if first and not timedelta() <= now - datetime.fromisoformat(first) < key_lives:
        return "the service may have forgotten its key: a person must look whether it was done"
    return None


def _bury(connection: AgentConnection, command: Command, session: str, error: str) -> None:
    connection.execute(
        "UPDATE outbox_commands SET status = 'dead', last_error = ? WHERE idempotency_key = ?",
        (error, command.idempotency_key),
    )
    command.tell(connection, "command_dead", session)
