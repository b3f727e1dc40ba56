"""Retention: what a database may forget, when, and how a run that nobody goes on with is ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lesson_lib.checkpoints.archive import create_archive, read_archive
from lesson_lib.checkpoints.codec import digest
from lesson_lib.clock import aware, utc_text
from lesson_lib.errors import InvalidStateError
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite import AgentConnection, record_event, unfinished_runs, write_checkpoint
from lesson_lib.sqlite.records import is_stored, require_run
from lesson_lib.store import Rider

SHORTEST, LONGEST = timedelta(hours=24), timedelta(hours=72)
# The id of an expired run stays: a new run under it would have the same idempotency keys, and no
# saved results.
TOMBSTONES = (
    """CREATE TABLE IF NOT EXISTS expired_runs (
    run_id         TEXT NOT NULL PRIMARY KEY,
    expired_at_utc TEXT NOT NULL
) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS expired_ids_stay_used BEFORE INSERT ON agent_runs
    WHEN EXISTS (SELECT 1 FROM expired_runs WHERE run_id = NEW.run_id)
    BEGIN SELECT RAISE(ABORT, 'a run of this id has expired, with its saved results: use a new id');
    END""",
)
RUNNING = "it is running"
UNFINISHED = "SELECT run_id FROM agent_runs WHERE status = 'running'"
# Why a run is kept: the table and condition of a row that keeps it, the first one counts.
REASONS = (
    ("run_questions", "answer IS NULL", "a question of it waits for its answer"),
    ("tool_intents", "status = 'intended'", "what became of an intent is not known"),
    ("outbox_commands", "status IN ('waiting', 'dead')", "a command of it is not delivered"),
    ("run_claims", "expires_at_utc > :now", "a worker has claimed it"),
    ("run_log", f"run_id IN ({UNFINISHED})", "it is kept as a log: only its own store can end it"),
    ("agent_events", "created_at_utc > :since", "its saved results may still be asked for"),
    ("agent_runs", "status = 'running'", RUNNING),
)


@dataclass(frozen=True)
class Expired:
    """What `expire` deleted."""

    checkpoints: int
    runs: tuple[str, ...]


def create_retention(connection: AgentConnection) -> None:
    """Prepare a database for expiry; in one that is prepared, do nothing.

    A file with tables changes its `auto_vacuum` by a VACUUM only, which rewrites all of it: call
    this when the file is new.
    """
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    if mode == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    create_archive(connection)
    with connection:
        for statement in TOMBSTONES:
            connection.execute(statement)


def why_kept(connection: AgentConnection, run_id: str, ttl: timedelta) -> str | None:
    """Return why a run must not expire now: the first of `REASONS` that holds, None if it may.

    A repeated request is an event too, so a saved result is there for all who repeat within `ttl`.

    Raises:
        InvalidStateError: The TTL is not between `SHORTEST` and `LONGEST`.
        UnknownRunError: There is no such run.
    """
    _require_ttl(ttl)
    require_run(connection, run_id)
    tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_schema")}
    now = aware(connection.clock())
    values = {"run_id": run_id, "now": utc_text(now), "since": utc_text(now - ttl)}
    for table, condition, reason in REASONS:
        find = f"SELECT 1 FROM {table} WHERE run_id = :run_id AND {condition}"
        if table in tables and connection.execute(find, values).fetchone():
            return reason
    return None


def expire(
    connection: AgentConnection,
    *,
    ttl: timedelta,
    keep: int = 3,
    batch: int = 100,
    passing: Callable[[str], None] = lambda point: None,
) -> Expired:
    """Delete old kept checkpoints, and the whole runs that `why_kept` gives no reason to keep.

    Each transaction deletes one run with all that belongs to it, or some checkpoints of one;
    between two of them others can write, and the process may die. What is deleted is overwritten
    with zeros. A clock that runs ahead expires too early; nothing can notice that.

    Args:
        connection: An open connection, outside of a transaction, after `create_retention`.
        ttl: How long after its latest event a completed run stays; `SHORTEST` to `LONGEST`.
        keep: How many versions of a run that can be trusted stay, at least 1, and all newer ones.
        batch: How many checkpoints a transaction deletes at most, at least 1.
        passing: Is told after each transaction what it was about.

    Raises:
        InvalidStateError: One of the numbers is out of its bounds. Nothing was deleted.
    """
    if min(keep, batch) < 1:
        raise InvalidStateError(f"keep {keep} and batch {batch} must be at least 1 each")
    _require_ttl(ttl)
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    checkpoints, runs = 0, list[str]()
    versions = connection.execute("SELECT run_id, version FROM agent_runs ORDER BY run_id")
    for run_id, version in versions.fetchall():
        oldest = _oldest_kept(connection, run_id, version, keep)
        while deleted := _delete_checkpoints(connection, run_id, oldest, batch):
            checkpoints += deleted
            passing(f"{run_id}: checkpoints")
        if _delete_run(connection, run_id, ttl):
            runs.append(run_id)
            passing(f"{run_id}: whole")
    return Expired(checkpoints, tuple(runs))


def silent_runs(connection: AgentConnection, ttl: timedelta) -> list[str]:
    """Return the runs that one may `abandon`: nothing keeps them but that they are running."""
    unfinished = unfinished_runs(connection)
    return [run_id for run_id in unfinished if why_kept(connection, run_id, ttl) == RUNNING]


def abandon(
    connection: AgentConnection,
    state: RunState,
    *,
    session: str,
    reason: str,
    riders: Sequence[Rider] = (),
) -> RunState:
    """End a run that nobody will go on with: it is completed, by the event `run_abandoned`.

    A session that goes on all the same cannot save any more. `state` is the run as it was when
    `session` decided it, `reason` a few words without any private data, `riders` ride with the
    last checkpoint.

    Raises:
        InvalidStateError: Something else keeps the run, such as an event within `SHORTEST`.
        RunCompletedError, StaleVersionError, UnknownRunError: See `save_checkpoint`.
    """
    with connection:
        kept = why_kept(connection, state.run_id, SHORTEST)
        if kept not in (RUNNING, None):
            raise InvalidStateError(f"{state.run_id} is not abandoned: {kept}")
        step = Step("abandon", {}, next_action=None)
        ended = write_checkpoint(connection, state, step, session=session, riders=riders)
        record_event(
            connection,
            run_id=state.run_id,
            session=session,
            event_type="run_abandoned",
            action="abandon",
            detail={"reason": reason},
        )
    return ended


def give_back(connection: AgentConnection) -> int:
    """Cut the free pages off a file that `create_retention` prepared; return how many it lost."""
    lost = 0
    while free := _free_pages(connection):
        connection.execute("PRAGMA incremental_vacuum(100)").fetchall()
        cut = free - _free_pages(connection)
        if cut <= 0:
            break  # somebody else deletes just now, or the file is not prepared
        lost += cut
    # The other kinds of checkpoint wait for readers, and keep writers out meanwhile.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return lost


def _require_ttl(ttl: timedelta) -> None:
    if not SHORTEST <= ttl <= LONGEST:
        raise InvalidStateError(
            f"a TTL of {ttl / timedelta(hours=1):g} hours is not between 24 and 72: callers may"
            " repeat a request for a day, and nothing is kept for ever"
        )


def _oldest_kept(connection: AgentConnection, run_id: str, current: int, keep: int) -> int:
    """Return the oldest version to keep, 0 for all; damaged ones and later ones do not count."""
    kept = [s for s in read_archive(connection, run_id) if digest(s) == s.sha256]
    trusted = sorted({s.version for s in kept if s.version <= current}, reverse=True)
    return trusted[keep - 1] if len(trusted) > keep else 0


def _delete_checkpoints(connection: AgentConnection, run_id: str, oldest: int, batch: int) -> int:
    with connection:
        return connection.execute(
            """DELETE FROM run_checkpoints WHERE checkpoint_id IN (
            SELECT checkpoint_id FROM run_checkpoints WHERE run_id = ? AND version < ?
            ORDER BY version, checkpoint_id LIMIT ?)""",
            (run_id, oldest, batch),
        ).rowcount


def _delete_run(connection: AgentConnection, run_id: str, ttl: timedelta) -> bool:
    with connection:
        # In the transaction: nobody asks for a saved result between look and deletion.
        if not is_stored(connection, run_id) or why_kept(connection, run_id, ttl) is not None:
            return False
        connection.execute(
            "INSERT INTO expired_runs VALUES (?, ?)", (run_id, utc_text(connection.clock()))
        )
        for table in ("tool_effects", "agent_events", "agent_runs"):
            connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
    return True


def _free_pages(connection: AgentConnection) -> int:
    (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages)
