"""The connection: what the usual way of opening SQLite gets wrong, and what is promised instead."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from store_parts import new_database, rows

from lesson_lib.errors import LessonError, SimulatedCrash, StorageError, TransactionError
from lesson_lib.model import RunState
from lesson_lib.processes import Child
from lesson_lib.sqlite import AgentConnection, connect, create_schema, start_run
from lesson_lib.sqlite.opening import APPLICATION_ID, set_pragmas

type Open = Callable[[Path], sqlite3.Connection]

EVENT = "INSERT INTO agent_events VALUES (?, ?, 's', 'noted', 'a', {}, '2024-01-01T00:00Z')"
SMALL, BIG = EVENT.format("'{}'"), EVENT.format("json_quote(hex(zeroblob(100000)))")
UPDATE = "UPDATE agent_runs SET version = version + 1"
VERSION = "SELECT version FROM agent_runs"


def usual(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, autocommit=False)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def usual_after_a_commit(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, autocommit=False)
    connection.commit()
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def plain_autocommit(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, autocommit=True)


def legacy(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path)


def any_thread(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, autocommit=False, check_same_thread=False)


def both(*usual_ways: Open) -> pytest.MarkDecorator:
    """Run a test on usual ways, which fall into its trap, and on ours, which does not."""
    ways = [*((way, True) for way in usual_ways), (connect, False)]
    return pytest.mark.parametrize(
        ("way", "falls"), ways, ids=[way.__name__ if falls else "ours" for way, falls in ways]
    )


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = new_database(tmp_path)
    with closing(connect(path)) as connection:
        start_run(connection, RunState.begin("r", "T1", "a", {}), session="s")
    return path


def version(database: Path) -> int:
    found: int = rows(database)["agent_runs"][0][5]
    return found


def events(database: Path) -> list[tuple[str, int]]:
    return [row[:2] for row in rows(database)["agent_events"]]


# Fact 1: inside a transaction, pragmas are ignored or refused.


@both(usual, usual_after_a_commit)
def test_an_orphan_event_is_refused(way: Open, falls: bool, database: Path) -> None:
    refused = contextlib.suppress(sqlite3.IntegrityError)
    with closing(way(database)) as connection, refused, connection:
        connection.execute(SMALL, ("nobody", 1))
    assert (("nobody", 1) in events(database)) == falls


@both(usual)
@pytest.mark.parametrize(
    "statement", ["PRAGMA journal_mode = DELETE", "PRAGMA synchronous = NORMAL", "VACUUM"]
)
def test_a_pragma_or_vacuum_meets_no_transaction(
    way: Open, falls: bool, database: Path, statement: str
) -> None:
    with closing(way(database)) as connection:
        try:
            connection.execute(statement)
            refused = False
        except sqlite3.OperationalError:
            refused = True
    assert refused == falls


@both(usual)
def test_foreign_keys_are_on_and_a_commit_is_on_disk(
    way: Open, falls: bool, tmp_path: Path
) -> None:
    wanted = {"foreign_keys": 1, "journal_mode": "wal", "synchronous": 2}
    with closing(way(tmp_path / "new.db")) as connection:
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted}
    assert (found != wanted) == falls


def test_a_database_that_cannot_keep_a_commit_is_refused() -> None:
    with pytest.raises(StorageError, match="in :memory: dies with its process: name a file"):
        connect(":memory:")


# Fact 2: a SELECT leaves a read transaction open.


@both(usual)
def test_a_second_read_sees_what_others_wrote(way: Open, falls: bool, database: Path) -> None:
    with closing(way(database)) as connection, closing(plain_autocommit(database)) as other:
        connection.execute(VERSION).fetchone()
        other.execute(UPDATE)
        (found,) = connection.execute(VERSION).fetchone()
    assert (found == 0) == falls


@both(usual)
def test_a_write_after_a_read_is_no_snapshot_of_the_past(
    way: Open, falls: bool, database: Path
) -> None:
    refused = ""
    with closing(way(database)) as connection, closing(plain_autocommit(database)) as other:
        connection.execute(VERSION).fetchone()
        other.execute(UPDATE)
        try:
            with connection:
                connection.execute(UPDATE)
        except sqlite3.OperationalError as error:
            refused = error.sqlite_errorname
    assert (refused == "SQLITE_BUSY_SNAPSHOT") == falls
    assert version(database) == (1 if falls else 2)


@both(usual)
def test_a_reader_keeps_the_wal_from_being_emptied_no_longer_than_it_reads(
    way: Open, falls: bool, database: Path
) -> None:
    with closing(way(database)) as connection, closing(plain_autocommit(database)) as other:
        other.execute(UPDATE)
        connection.execute(VERSION).fetchone()
        other.execute(UPDATE)
        other.execute("PRAGMA busy_timeout = 0")
        (busy, *_) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy == 1) == falls


@both(usual)
def test_a_reader_locks_no_writer_out_of_a_file_without_wal(
    way: Open, falls: bool, database: Path
) -> None:
    with closing(plain_autocommit(database)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
    with closing(way(database)) as connection, closing(plain_autocommit(database)) as other:
        other.execute("PRAGMA busy_timeout = 0")
        if not falls:
            connection.execute("PRAGMA journal_mode = DELETE")  # since `connect` has set WAL
        connection.execute(VERSION).fetchone()
        locked_out = contextlib.suppress(sqlite3.OperationalError) if falls else closing(other)
        with locked_out:
            other.execute(UPDATE)
    assert version(database) == (0 if falls else 1)


# Fact 3: SQLite rolls back by itself.


def fill_the_disk(connection: sqlite3.Connection) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")


def interrupt(connection: sqlite3.Connection) -> None:
    steps = count()
    connection.set_progress_handler(lambda: next(steps) == 3, 1)  # once


def end_of_trouble(connection: sqlite3.Connection) -> None:
    connection.set_progress_handler(None, 0)
    connection.execute("PRAGMA max_page_count = 1000000")


troubles = pytest.mark.parametrize(
    ("trouble", "said"), [(fill_the_disk, "disk is full"), (interrupt, "interrupted")]
)


@troubles
@both(usual)
def test_the_error_that_made_sqlite_roll_back_is_the_one_that_is_raised(
    way: Open, falls: bool, database: Path, trouble: Callable[..., None], said: str
) -> None:
    with closing(way(database)) as connection:
        with pytest.raises((sqlite3.Error, LessonError)) as caught, connection:
            connection.execute(UPDATE)
            trouble(connection)
            connection.execute(BIG, ("r", 2))
        connection.set_progress_handler(None, 0)
    assert (said not in str(caught.value)) == falls
    assert version(database) == 0


@troubles
@both(usual)
def test_whoever_goes_on_after_the_rollback_saves_no_half(
    way: Open, falls: bool, database: Path, trouble: Callable[..., None], said: str
) -> None:
    suppressed = contextlib.suppress(sqlite3.Error, LessonError)
    with closing(way(database)) as connection, suppressed, connection:
        connection.execute(UPDATE)
        trouble(connection)
        with contextlib.suppress(sqlite3.Error, LessonError):
            connection.execute(BIG, ("r", 2))
        end_of_trouble(connection)
        connection.execute(SMALL, ("r", 2))
    assert version(database) == 0
    assert (("r", 2) in events(database)) == falls


@troubles
@both(usual)
def test_the_connection_is_good_again_after_the_rollback(
    way: Open, falls: bool, database: Path, trouble: Callable[..., None], said: str
) -> None:
    with closing(way(database)) as connection:
        with contextlib.suppress(sqlite3.Error, StorageError), connection:
            connection.execute(UPDATE)
            trouble(connection)
            connection.execute(BIG, ("r", 2))
        end_of_trouble(connection)
        with contextlib.suppress(sqlite3.Error, ZeroDivisionError), connection:
            connection.execute(UPDATE)
            raise ZeroDivisionError
    assert (version(database) == 1) == falls


USES: dict[str, Callable[[sqlite3.Cursor], object]] = {
    "execute": lambda cursor: cursor.execute(UPDATE),
    "executemany": lambda cursor: cursor.executemany(SMALL, [("r", 2)]),
    "executescript": lambda cursor: cursor.executescript(UPDATE),
    "fetchone": lambda cursor: cursor.fetchone(),
    "fetchall": lambda cursor: cursor.fetchall(),
    "connection.execute": lambda cursor: cursor.connection.execute(UPDATE),
    "connection.executemany": lambda cursor: cursor.connection.executemany(SMALL, [("r", 2)]),
    "connection.executescript": lambda cursor: cursor.connection.executescript(UPDATE),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_block_whose_transaction_has_ended_refuses_everything(
    connection: AgentConnection, database: Path, use: Callable[[sqlite3.Cursor], object]
) -> None:
    cursor = connection.cursor()
    with pytest.raises(TransactionError, match="ended already: leave the block"), connection:
        connection.execute(UPDATE)
        connection.execute("ROLLBACK")
        with pytest.raises(TransactionError, match="ended already"):
            use(cursor)
    assert (version(database), events(database)) == (0, [("r", 1)])
    use(cursor)


# Fact 4: `with` of a plain autocommit connection does nothing; a nested one commits the outer.


@both(plain_autocommit)
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SimulatedCrash])
def test_a_block_that_raises_changes_nothing(
    way: Open, falls: bool, database: Path, error: type[BaseException]
) -> None:
    with closing(way(database)) as connection:
        with pytest.raises(error), connection:
            connection.execute(UPDATE)
            raise error
        assert not connection.in_transaction
    assert (version(database) == 1) == falls


@both(usual, legacy)
def test_a_nested_block_does_not_commit_the_outer(way: Open, falls: bool, database: Path) -> None:
    refused = contextlib.suppress(ZeroDivisionError, TransactionError)
    with closing(way(database)) as connection, refused, connection:
        connection.execute(UPDATE)
        with connection:
            pass
        raise ZeroDivisionError
    assert (version(database) == 1) == falls


def test_a_nested_block_is_refused(connection: AgentConnection, database: Path) -> None:
    with pytest.raises(TransactionError, match="does not nest"), connection:
        connection.execute(UPDATE)
        connection.__enter__()
    assert version(database) == 0


# Fact 5: what is uncommitted hangs a backup, is lost at close, and is shared by threads.


@both(usual)
def test_a_backup_after_a_write_comes_to_its_end(way: Open, falls: bool, database: Path) -> None:
    class HangsError(Exception):
        pass

    def progress(status: int, remaining: int, total: int) -> None:
        if status == sqlite3.SQLITE_BUSY:
            raise HangsError

    with closing(way(database)) as connection, closing(sqlite3.connect(":memory:")) as copy:
        connection.execute(UPDATE)
        try:
            connection.backup(copy, progress=progress, sleep=0)
            hangs = False
        except HangsError:
            hangs = True
    assert hangs == falls


@both(usual)
@pytest.mark.parametrize(
    "write",
    [
        lambda connection: connection.execute(UPDATE),
        lambda connection: connection.executemany(UPDATE + " WHERE run_id = ?", [("r",)]),
        lambda connection: connection.executescript(UPDATE),
    ],
    ids=["execute", "executemany", "executescript"],
)
def test_a_write_outside_a_block_survives_close(
    way: Open, falls: bool, database: Path, write: Callable[[sqlite3.Connection], object]
) -> None:
    with closing(way(database)) as connection:
        write(connection)
    assert (version(database) == 0) == falls


def test_a_script_inside_a_block_is_part_of_it(connection: AgentConnection, database: Path) -> None:
    with pytest.raises(KeyError), connection:
        connection.executescript(f"{UPDATE}; {UPDATE}")
        raise KeyError
    assert version(database) == 0


@both(any_thread)
def test_another_thread_cannot_commit_half_a_block(way: Open, falls: bool, database: Path) -> None:
    refused: list[sqlite3.ProgrammingError] = []

    def meddle(shared: sqlite3.Connection) -> None:
        try:
            shared.execute(SMALL, ("r", 2))
            shared.commit()
        except sqlite3.ProgrammingError as error:
            refused.append(error)

    with closing(way(database)) as connection, contextlib.suppress(ZeroDivisionError), connection:
        connection.execute(UPDATE)
        thread = threading.Thread(target=meddle, args=(connection,))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert (version(database), ("r", 2) in events(database)) == ((1, True) if falls else (0, False))
    assert bool(refused) != falls


# Fact 6: a column takes what was not meant.

USUAL_TABLES = """
    CREATE TABLE agent_runs (run_id TEXT PRIMARY KEY, ticket_id TEXT, status TEXT,
        next_action TEXT, context_json TEXT, version INTEGER);
    CREATE TABLE agent_events (run_id TEXT, sequence INTEGER, session TEXT, event_type TEXT,
        action TEXT, detail TEXT, created_at_utc TEXT, PRIMARY KEY (run_id, sequence));
    CREATE TABLE tool_effects (idempotency_key TEXT PRIMARY KEY, run_id TEXT, tool_name TEXT,
        input_sha256 TEXT, result_json TEXT);
"""
GOOD_ROWS: dict[str, dict[str, object]] = {
    "agent_runs": {
        "run_id": "r2",
        "ticket_id": "T1",
        "status": "running",
        "next_action": "a",
        "context_json": "{}",
        "version": 0,
    },
    "agent_events": {
        "run_id": "r",
        "sequence": 2,
        "session": "s",
        "event_type": "noted",
        "action": "a",
        "detail": "{}",
        "created_at_utc": "2024-01-01T00:00Z",
    },
    "tool_effects": {
        "idempotency_key": "k",
        "run_id": "r",
        "tool_name": "t",
        "input_sha256": "00",
        "result_json": "{}",
    },
}


def usual_tables(path: Path) -> sqlite3.Connection:
    path.unlink()
    connection = plain_autocommit(path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(USUAL_TABLES)
    return connection


def insert(connection: sqlite3.Connection, table: str, **changed: object) -> None:
    row = GOOD_ROWS[table] | changed
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", [*row.values()])


@both(usual_tables)
@pytest.mark.parametrize("value", [None, b"bytes"])
def test_no_column_takes_null_or_bytes(
    way: Open, falls: bool, database: Path, value: object
) -> None:
    everything = [(table, column) for table, row in GOOD_ROWS.items() for column in row]
    taken = []
    with closing(way(database)) as connection:
        for table, column in everything:
            with contextlib.suppress(sqlite3.IntegrityError):
                insert(connection, table, **{column: value})
                taken.append((table, column))
                connection.execute(f"DELETE FROM {table}")
    assert taken == (everything if falls else [])


@both(usual_tables)
@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("agent_runs", {"status": "paused"}),
        ("agent_runs", {"status": "completed"}),
        ("agent_runs", {"next_action": None}),
        ("agent_runs", {"context_json": "{'a': 1}"}),
        ("agent_runs", {"version": -1}),
        ("agent_runs", {"version": "one"}),
        ("agent_events", {"run_id": "nobody"}),
        ("agent_events", {"sequence": 0}),
        ("agent_events", {"detail": "{"}),
        ("agent_events", {"created_at_utc": "yesterday"}),
        ("agent_events", {"created_at_utc": "2024-01-01T00:00+02:00"}),
        ("tool_effects", {"run_id": "nobody"}),
        ("tool_effects", {"result_json": "NaN"}),
    ],
)
def test_the_schema_refuses_what_breaks_a_promise(
    way: Open, falls: bool, database: Path, table: str, changed: dict[str, object]
) -> None:
    with closing(way(database)) as connection:
        try:
            insert(connection, table, **changed)
            refused = False
        except sqlite3.IntegrityError:
            refused = True
        if not falls:
            insert(connection, table)
    assert refused != falls


@pytest.mark.parametrize("table", GOOD_ROWS)
def test_no_key_is_there_twice(connection: AgentConnection, table: str) -> None:
    insert(connection, table)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        insert(connection, table)


# What is promised beyond the traps.


def test_a_block_commits_at_its_end(connection: AgentConnection, database: Path) -> None:
    with connection as same:
        assert same is connection
        connection.execute(UPDATE)
        assert version(database) == 0
    assert version(database) == 1


def test_a_block_that_cannot_commit_rolls_back(connection: AgentConnection, database: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), connection:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        connection.execute(UPDATE)
        connection.execute(SMALL, ("nobody", 1))
    assert version(database) == 0
    with connection:
        connection.execute(UPDATE)
    assert version(database) == 1


def test_a_failing_rollback_does_not_hide_the_first_error(connection: AgentConnection) -> None:
    def no_rollback(action: int, what: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if what == "ROLLBACK" else sqlite3.SQLITE_OK

    with pytest.raises(KeyError, match="first"), connection:
        connection.set_authorizer(no_rollback)
        raise KeyError("first")


def test_a_block_waits_for_the_other_writer_at_its_begin_not_in_its_middle(
    connection: AgentConnection, database: Path
) -> None:
    with closing(connect(database, timeout=0)) as late, connection:
        with pytest.raises(StorageError, match="is locked by another process"), late:
            pytest.fail("the block must not begin")
        assert late.execute(VERSION).fetchone()[0] == 0
    with connection:
        connection.execute(UPDATE)


def test_a_pragma_that_came_too_late_is_noticed(database: Path) -> None:
    late = sqlite3.connect(database, autocommit=True, factory=AgentConnection)
    with closing(late):
        late.path, late.timeout = database, 0.0
        late.execute("BEGIN")
        with pytest.raises(StorageError, match="does not take foreign_keys = ON"):
            set_pragmas(late)


def test_a_new_file_under_another_writer_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "new.db", autocommit=True)) as other:
        other.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="is locked by another process"):
            connect(tmp_path / "new.db", timeout=0.05)


def test_the_timeout_is_the_one_that_was_asked_for(database: Path) -> None:
    with closing(connect(database, timeout=0.25)) as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == 250


def test_creating_the_schema_twice_is_harmless(connection: AgentConnection, database: Path) -> None:
    before = rows(database)
    create_schema(connection)
    assert rows(database) == before
    assert sorted(before) == ["agent_events", "agent_runs", "tool_effects"]


def test_the_schema_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "new.db")) as connection:
        connection.execute("PRAGMA max_page_count = 4")
        with pytest.raises(StorageError, match="disk is full"):
            create_schema(connection)
        assert rows(tmp_path / "new.db") == {}
        connection.execute("PRAGMA max_page_count = 100")
        create_schema(connection)
        assert len(rows(tmp_path / "new.db")) == 3


CREATE = """
import sys
from lesson_lib.model import RunState
from lesson_lib.sqlite import connect, create_schema, start_run
for line in sys.stdin:
    path, run = line.split()
    connection = connect(path)
    create_schema(connection)
    start_run(connection, RunState.begin(run, "T1", "a", {}), session="s")
    connection.close()
    print(run, flush=True)
"""


def test_eight_processes_may_create_one_file_at_the_same_moment(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child("-c", CREATE)) for _ in range(8)]
        for round_ in range(5):
            database = tmp_path / f"{round_}.db"
            for number, child in enumerate(children):
                child.tell(f"{database} run-{number}")
            assert [child.read() for child in children] == [f"run-{n}" for n in range(8)]
            assert [row[0] for row in rows(database)["agent_runs"]] == [
                f"run-{n}" for n in range(8)
            ]


FORK = """
import os, sys
from lesson_lib.errors import LessonError
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
connection = connect(sys.argv[1])
create_schema(connection)
store = SQLiteStore(connection, "s")
state = store.start_run(RunState.begin("r", "T1", "a", {}))
for ask in (
    lambda: store.save_checkpoint(state, Step("a", {}, "a")),
    lambda: store.load_state("r"),
    lambda: connection.execute("SELECT 1"),
):
    sys.stdout.flush()
    if not (child := os.fork()):
        try:
            print("the child was told", ask())
        except LessonError as error:
            print(type(error).__name__, str(error).partition(" was ")[2])
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
print(store.save_checkpoint(state, Step("a", {}, "a")).version, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on Windows")
def test_a_forked_child_cannot_use_the_connection_of_its_parent(tmp_path: Path) -> None:
    refused = "TransactionError opened before the process forked: a child must open one of its own"
    with Child("-c", FORK, tmp_path / "new.db") as process:
        assert [process.read() for _ in range(4)] == [refused] * 3 + ["1"]
