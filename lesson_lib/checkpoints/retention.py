"""Retention: what a database may forget, when, and how a run that nobody goes on with is ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from lesson_lib.checkpoints import archive
from lesson_lib.errors import (
    CheckpointSizeError,
    InvalidStateError,
    UnknownRunError,
)
from lesson_lib.model import RunState, require_text
from lesson_lib.stores.sqlite import (
    AgentConnection,
    read_claims,
    record_event,
    unfinished_runs,
    write_checkpoint,
)
from lesson_lib.stores.sqlite.connection import aware, utc_text, while_locked

SHORTEST, LONGEST = timedelta(hours=24), timedelta(hours=72)
# The id of an expired run is the one thing that stays: a run that began again under it would use
# its idempotency keys again, and find no saved results.
STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS expired_runs (
    run_id         TEXT NOT NULL PRIMARY KEY,
    expired_at_utc TEXT NOT NULL
) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS expired_ids_stay_used BEFORE INSERT ON agent_runs
    WHEN EXISTS (SELECT 1 FROM expired_runs WHERE run_id = NEW.run_id)
    BEGIN SELECT RAISE(ABORT, 'a run of this id has expired, with its saved results: use a new id');
    END""",
)
OPEN = {
    "run_questions": ("answer IS NULL", "a question of it waits for its answer"),
    "tool_intents": ("status = 'intended'", "what became of an intent is not known"),
    "outbox_commands": ("status IN ('waiting', 'dead')", "a command of it is not delivered"),
}


@dataclass(frozen=True)
class Expired:
    """What `expire` deleted, and what it should have deleted and could not, with the reason."""

    checkpoints: int
    runs: tuple[str, ...]
    refused: tuple[str, ...]


def create_retention(connection: AgentConnection) -> None:
    """Prepare a database for expiry; in one that is prepared, do nothing.

    The first call rewrites the whole file (VACUUM), since SQLite lets a file with tables change
    its `auto_vacuum` in no other way. That needs the room of the file twice and locks everybody
    out, so call it when the file is new.
    """
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    if mode == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        while_locked(lambda: connection.execute("VACUUM"), connection.timeout)
    archive.create_archive(connection)
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)


def expire(
    connection: AgentConnection,
    *,
    ttl: timedelta,
    keep: int = 3,
    batch: int = 100,
    passing: Callable[[str], None] = lambda point: None,
) -> Expired:
    """Delete old kept checkpoints, and the whole runs that `why_kept` gives no reason to keep.

    Each transaction deletes one run with all that belongs to it, or up to `batch` checkpoints of
    one; between two of them others can write, and the process may die. A clock that runs ahead
    expires too early; nothing can notice that. What is deleted is overwritten with zeros, in the
    file itself once `give_back` has emptied the `-wal` file; what other connections freed before
    without `secure_delete` is not.

    Args:
        connection: An open connection, outside of a transaction, after `create_retention`.
        ttl: How long after its latest event a completed run stays; see `why_kept`.
        keep: How many checkpoints of a run stay at least: the newest that can be trusted, and
            all newer ones. A run with fewer keeps them all.
        batch: How many checkpoints a transaction deletes at most.
        passing: Is told after each transaction what it was about.

    Raises:
        InvalidStateError: The TTL is not between `SHORTEST` and `LONGEST`, or `keep` or `batch`
            is not at least 1, or the clock gives a naive time. Nothing was deleted.
        TransactionError: A transaction is open.
    """
    if min(keep, batch) < 1:
        raise InvalidStateError(f"keep {keep} and batch {batch} must be at least 1 each")
    _require_ttl(ttl)
    aware(connection.clock())
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    checkpoints = 0
    runs: list[str] = []
    refused: list[str] = []
    versions = connection.execute("SELECT run_id, version FROM agent_runs ORDER BY run_id")
    for run_id, version in versions.fetchall():
        oldest_kept = _oldest_kept(connection, run_id, version, keep)
        while deleted := _delete_checkpoints(connection, run_id, oldest_kept, batch):
            checkpoints += deleted
            passing(f"{run_id}: checkpoints")
        try:
            deleted_whole = _delete_run(connection, run_id, ttl)
        except sqlite3.IntegrityError as error:  # one run must not stop the others
            refused.append(f"{run_id}: {error}")
            continue
        if deleted_whole:
            runs.append(run_id)
            passing(f"{run_id}: whole")
    return Expired(checkpoints, tuple(runs), tuple(refused))


def why_kept(connection: AgentConnection, run_id: str, ttl: timedelta) -> str | None:
    """Return why a run must not expire now, None if it may.

    A running run never expires, however old it is: somebody has to `abandon` it first. A run with
    open business never does either. A completed one stays until its latest event is `ttl` old. A
    repeat that goes through `execute_once` is such an event (`tool_reused`), so its saved result
    is there for every caller who repeats within `ttl`; a look at the finished run is none.

    Raises:
        InvalidStateError: The TTL is not between `SHORTEST` and `LONGEST`.
        UnknownRunError: There is no such run.
    """
    _require_ttl(ttl)
    row = connection.execute(
        "SELECT status FROM agent_runs WHERE run_id = ?", (require_text("run_id", run_id),)
    ).fetchone()
    if row is None:
        raise UnknownRunError(f"{connection.path} holds no run {run_id!r}")
    still_open = _open_business(connection, run_id)
    if still_open is None and row["status"] != "completed":
        return "it is running"
    return still_open or _too_young(connection, run_id, ttl)


def silent_runs(connection: AgentConnection, ttl: timedelta) -> list[str]:
    """Return the unfinished runs without open business whose latest event is `ttl` old or older.

    They are those that a person, or a rule that persons agreed on, may `abandon`; so those that
    are kept as a log are not among them.
    """
    _require_ttl(ttl)
    return [
        run_id
        for run_id in unfinished_runs(connection)
        if not (
            _open_business(connection, run_id)
            or _too_young(connection, run_id, ttl)
            or archive.is_log(connection, run_id)
        )
    ]


def abandon(connection: AgentConnection, state: RunState, *, session: str, reason: str) -> RunState:
    """End a run that nobody will go on with: it is completed, by the event `run_abandoned`.

    Its context stays as it was, and a session that goes on all the same cannot save any more.

    Args:
        connection: An open connection, outside of a transaction.
        state: The run as it was when it was decided. A run that has moved on since, or had any
            event within `SHORTEST`, is not ended: somebody works on it.
        session: Who decided it.
        reason: A few words, without any private data.

    Raises:
        InvalidStateError: The run has open business, is too young, or is kept as a log. Nothing
            changed.
        RunCompletedError, StaleVersionError, UnknownRunError: See `save_checkpoint`.
    """
    archive.create_archive(connection)
    with connection:
        archive.require_checkpoints(connection, state.run_id)
        still_open = _open_business(connection, state.run_id)
        if still_open is not None:
            raise InvalidStateError(f"{state.run_id} is not abandoned: {still_open}. Settle it")
        if _too_young(connection, state.run_id, SHORTEST):
            raise InvalidStateError(
                f"{state.run_id} is not abandoned: it had an event less than 24 hours ago. Wait"
            )
        ended = write_checkpoint(
            connection,
            state,
            session=session,
            action="abandon",
            next_action=None,
            context=state.context,
        )
        with suppress(InvalidStateError, CheckpointSizeError):  # of a save without the archive
            archive.keep(connection, ended)
        record_event(
            connection,
            run_id=state.run_id,
            session=session,
            event_type="run_abandoned",
            action="abandon",
            detail={"reason": require_text("reason", reason)},
        )
    return ended


def give_back(connection: AgentConnection, *, pages: int = 100) -> int:
    """Cut the file's free pages off, so many in a transaction; return the bytes that it lost.

    The `-wal` file is emptied after that, unless somebody is reading from it: then the next call
    does it. No one waits for that.

    Args:
        connection: An open connection, outside of a transaction, after `create_retention`.
        pages: How many pages a transaction moves at most.
    """
    before = _value(connection, "page_count")
    while free := _value(connection, "freelist_count"):
        connection.execute(f"PRAGMA incremental_vacuum({int(pages)})").fetchall()
        if _value(connection, "freelist_count") >= free:
            break  # somebody else deletes just now, or the file is not prepared
    lost = (before - _value(connection, "page_count")) * _value(connection, "page_size")
    # While it waits for readers, a truncation keeps writers out: so it does not wait.
    connection.execute("PRAGMA busy_timeout = 0").fetchall()
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(connection.timeout * 1000)}").fetchall()
    return lost


def _require_ttl(ttl: timedelta) -> None:
    if not SHORTEST <= ttl <= LONGEST:
        raise InvalidStateError(
            f"a TTL of {ttl / timedelta(hours=1):g} hours is not between 24 and 72: callers may"
            " repeat a request for a day, and nothing is kept for ever"
        )


def _open_business(connection: AgentConnection, run_id: str) -> str | None:
    tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_schema")}
    for table, (condition, reason) in OPEN.items():
        if table not in tables:
            continue
        found = f"SELECT 1 FROM {table} WHERE run_id = ? AND {condition}"
        if connection.execute(found, (run_id,)).fetchone():
            return reason
    now = aware(connection.clock())
    for claim in read_claims(connection) if "run_claims" in tables else ():
        if claim.run_id == run_id and claim.is_live(now):
            return f"{claim.worker} has claimed it"
    return None


def _too_young(connection: AgentConnection, run_id: str, ttl: timedelta) -> str | None:
    # Not that of the last event: the clock may have stood wrong at it.
    row = connection.execute(
        "SELECT max(created_at_utc) AS latest FROM agent_events WHERE run_id = ?", (run_id,)
    ).fetchone()
    try:
        age = aware(connection.clock()) - datetime.fromisoformat(row["latest"])
    except (TypeError, ValueError):
        return "the time of its latest event cannot be read"
    if age < timedelta():
        return "its latest event lies in the future"
    return "its saved results may still be asked for" if age < ttl else None


def _oldest_kept(connection: AgentConnection, run_id: str, current: int, keep: int) -> int:
    """Return the version of the oldest checkpoint to keep; 0 keeps them all.

    None to rely on are those that do not decode, those above the run's current version, and those
    of a version that is claimed twice.
    """
    claims: dict[int, int] = {}
    for kept in archive.read_kept(connection, run_id):
        if kept.state is not None and kept.version <= current:
            claims[kept.version] = claims.get(kept.version, 0) + 1
        trusted = [version for version, rows in claims.items() if rows == 1]
        if len(trusted) > keep:  # the lowest of them may yet be claimed a second time
            return trusted[keep - 1]
    return 0


def _delete_checkpoints(
    connection: AgentConnection, run_id: str, oldest_kept: int, batch: int
) -> int:
    older = "FROM run_checkpoints WHERE run_id = ? AND version < ?"
    if not connection.execute(f"SELECT 1 {older}", (run_id, oldest_kept)).fetchone():
        return 0
    with connection:
        deleted = connection.execute(
            f"""DELETE FROM run_checkpoints WHERE checkpoint_id IN
            (SELECT checkpoint_id {older} ORDER BY version, checkpoint_id LIMIT ?)""",
            (run_id, oldest_kept, batch),
        )
    return deleted.rowcount


def _delete_run(connection: AgentConnection, run_id: str, ttl: timedelta) -> bool:
    with suppress(UnknownRunError):  # somebody else was faster
        if why_kept(connection, run_id, ttl) is not None:
            return False  # without a transaction: most runs are kept
        with connection:
            if why_kept(connection, run_id, ttl) is not None:
                return False  # somebody has asked for a saved result since the look
            connection.execute(
                "INSERT INTO expired_runs VALUES (?, ?)", (run_id, utc_text(connection.clock()))
            )
            for table in ("tool_effects", "agent_events", "agent_runs"):
                connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        return True
    return False


def _value(connection: AgentConnection, pragma: str) -> int:
    (value,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return int(value)
