"""The edges of the store: files in odd places, rows and names that no caller should have."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from store_parts import files, rows

from lesson_lib.errors import (
    CorruptStateError,
    ForeignFileError,
    IdempotencyConflictError,
    InvalidStateError,
    LessonError,
    RunCompletedError,
    SchemaVersionError,
    StorageError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.processes import Child
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    delete_run,
    execute_once,
    load_state,
    read_events,
    save_checkpoint,
    start_run,
)
from lesson_lib.sqlite.on_disk import rows_on_disk


@pytest.fixture
def connection(connection: AgentConnection) -> AgentConnection:
    start_run(connection, RunState.begin("r", "T1", "a", {}), session="s")
    return connection


def save(connection: AgentConnection, state: RunState, next_action: str | None = "a") -> RunState:
    return save_checkpoint(connection, state, Step("a", {}, next_action), session="s")


# A look at the rows ends this process's locks: the next process to close throws the WAL away.

OPEN_AND_CLOSE = """
import sys
from lesson_lib.sqlite import connect, load_state
connection = connect(sys.argv[1])
print(load_state(connection, "r").version, flush=True)
connection.close()
print("closed", flush=True)
"""


def test_a_look_at_the_rows_loses_no_later_checkpoint(
    connection: AgentConnection, database: Path
) -> None:
    state = load_state(connection, "r")
    rows_on_disk(database)
    with Child("-c", OPEN_AND_CLOSE, database) as other:
        assert (other.read(), other.read()) == ("0", "closed")
    save(connection, state)
    with Child("-c", OPEN_AND_CLOSE, database) as other:
        assert other.read() == "1"


# `connect` fails at once, whatever the timeout, while another process writes to a new file.


def test_a_new_file_in_the_middle_of_another_write_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    connect(path).close()
    with closing(sqlite3.connect(path, autocommit=True, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = DELETE").fetchall()
        other.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.3, other.execute, ["ROLLBACK"])
        ending.start()
        try:
            connect(path).close()
        finally:
            ending.join()


# The lock belongs to the path, not to the file.


def test_the_lock_of_a_key_holds_through_a_symbolic_link(
    connection: AgentConnection, database: Path
) -> None:
    link = database.with_name("link.db")
    link.symlink_to(database)
    called = []

    def slow() -> int:
        called.append(1)
        time.sleep(0.2)
        return 1

    def caller(path: Path) -> object:
        with closing(connect(path)) as own:
            return execute_once(own, ToolCall("r", "k", "t", None, slow), session="s").value

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(caller, [database, link])) == [1, 1]
    assert called == [1]


def test_the_lock_stays_beside_the_file_when_the_process_changes_its_folder(
    connection: AgentConnection, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with closing(connect(database.name)) as relative:
        monkeypatch.chdir("elsewhere")
        execute_once(relative, ToolCall("r", "k", "t", None, lambda: 1), session="s")
    assert list((tmp_path / "elsewhere").iterdir()) == []


# A refused file is not left as it was.


def test_a_refused_later_schema_leaves_no_file_beside_it(database: Path, tmp_path: Path) -> None:
    with closing(connect(database)) as newer:
        newer.execute("PRAGMA user_version = 2")
    before = files(tmp_path)
    with pytest.raises(SchemaVersionError):
        connect(database)
    assert files(tmp_path).keys() == before.keys()


def test_a_foreign_wal_database_gets_no_file_beside_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", autocommit=True)) as plain:
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("CREATE TABLE t (a)")
    before = files(tmp_path)
    with pytest.raises(ForeignFileError):
        connect(tmp_path / "a.db")
    assert files(tmp_path).keys() == before.keys()


HOT = """
import sqlite3, sys
plain = sqlite3.connect(sys.argv[1], autocommit=True)
plain.execute("CREATE TABLE t (a)")
plain.execute("PRAGMA cache_size = 1")
plain.execute("BEGIN")
plain.executemany("INSERT INTO t VALUES (?)", [("x" * 3000,)] * 300)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_foreign_database_keeps_its_hot_journal(tmp_path: Path) -> None:
    with Child("-c", HOT, tmp_path / "a.db") as child:
        assert child.read() == "ready"
    before = files(tmp_path)
    assert before["a.db-journal"]
    with pytest.raises(ForeignFileError):
        connect(tmp_path / "a.db")
    assert files(tmp_path) == before


def test_a_text_of_one_letter_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    with pytest.raises(ForeignFileError):
        connect(tmp_path / "a.txt").close()
    assert files(tmp_path) == {"a.txt": b"x"}


# A database that cannot be written is opened all the same, and a tool runs in vain.

READER = """
import os, sys
from lesson_lib.model import ToolCall
from lesson_lib.sqlite import connect, execute_once
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    connection = connect(sys.argv[1])
    call = ToolCall("r", "k", "t", None, lambda: print("the tool ran"))
    execute_once(connection, call, session="s")
except Exception as error:
    print(type(error).__name__, flush=True)
"""


def test_a_database_that_cannot_be_written_is_refused_at_once(
    connection: AgentConnection, database: Path
) -> None:
    import tempfile

    connection.close()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.db")
        shutil.copy(database, path)
        path.chmod(0o444)
        path.parent.chmod(0o777)
        with Child("-c", READER, path) as reader:
            assert reader.read() == "StorageError"
        assert [path.name for path in Path(folder).iterdir()] == ["agent.db"]


def test_a_completed_run_takes_no_further_checkpoint(
    connection: AgentConnection, database: Path
) -> None:
    end = save(connection, load_state(connection, "r"), next_action=None)
    before = rows(database)
    with pytest.raises(RunCompletedError):
        save(connection, end)
    assert rows(database) == before


# A backup inside a block hangs for ever (fact 5).


def test_a_backup_inside_a_block_is_refused(connection: AgentConnection) -> None:
    class HangsError(Exception):
        pass

    def progress(status: int, remaining: int, total: int) -> None:
        if status == sqlite3.SQLITE_BUSY:
            raise HangsError

    with closing(sqlite3.connect(":memory:")) as copy, connection:
        connection.execute("UPDATE agent_runs SET version = 0")
        with pytest.raises(TransactionError):
            connection.backup(copy, progress=progress, sleep=0)


# A key is shared by two runs: the second gets the first one's result, which goes with the first.


def test_a_key_of_another_run_is_a_conflict(connection: AgentConnection) -> None:
    start_run(connection, RunState.begin("r2", "T", "a", {}), session="s")
    for run_id in ("r", "r2"):
        try:
            execute_once(connection, ToolCall(run_id, "k", "t", None, lambda: 1), session="s")
        except IdempotencyConflictError:
            assert run_id == "r2"
            return
    pytest.fail("no conflict")


# Errors that are not our own.


@pytest.mark.parametrize("ask", [load_state, read_events, delete_run])
def test_an_unknown_run_with_a_surrogate_in_its_name(
    connection: AgentConnection, ask: Callable[[AgentConnection, str], object]
) -> None:
    with pytest.raises((UnknownRunError, InvalidStateError)):
        ask(connection, "\ud800")


def test_a_tool_of_a_run_with_a_surrogate_in_its_name(connection: AgentConnection) -> None:
    with pytest.raises((UnknownRunError, InvalidStateError)):
        execute_once(connection, ToolCall("\ud800", "k", "t", None, lambda: 1), session="s")


def test_a_version_that_no_column_can_hold(connection: AgentConnection) -> None:
    with pytest.raises(LessonError):
        save(connection, replace(load_state(connection, "r"), version=2**63 - 1))


@pytest.mark.parametrize("context", [None, b"{}", 5])
def test_a_context_json_that_is_no_text(context: object) -> None:
    with pytest.raises(InvalidStateError):
        RunState("r", "T", "running", "a", context, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", ['{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", '{"a": 1e999}'])
def test_a_context_that_cannot_be_decoded_whole(connection: AgentConnection, stored: str) -> None:
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("UPDATE agent_runs SET context_json = ?", (stored,))
    with pytest.raises(CorruptStateError):
        load_state(connection, "r")


def test_a_connection_closed_inside_its_block_hides_no_error(connection: AgentConnection) -> None:
    with pytest.raises(KeyError), connection:
        connection.close()
        raise KeyError("first")


def test_a_row_that_cannot_be_trusted_names_a_cure(connection: AgentConnection) -> None:
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("UPDATE agent_runs SET status = 'paused'")
    with pytest.raises(CorruptStateError, match="backup"):
        load_state(connection, "r")


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        connect(tmp_path / "a\x00b")


# What would do nothing, or the wrong thing, in silence.


@pytest.mark.parametrize("name", ["commit", "rollback"])
def test_commit_and_rollback_by_hand_are_refused_and_undo_the_block(
    connection: AgentConnection, name: str
) -> None:
    before = rows(connection.path)
    with pytest.raises(TransactionError, match="block"), connection:
        connection.execute("UPDATE agent_runs SET ticket_id = 'changed'")
        getattr(connection, name)()
    assert rows(connection.path) == before


def test_an_interrupt_at_the_begin_leaves_no_transaction(
    connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = type(connection).execute

    def interrupted(self: AgentConnection, sql: str, *parameters: object) -> None:
        begin(self, sql, *parameters)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(connection), "execute", interrupted)
    with pytest.raises(KeyboardInterrupt), connection:
        pass
    assert not connection.in_transaction


def test_a_clock_without_a_time_zone_is_refused(database: Path) -> None:
    with closing(connect(database, clock=lambda: datetime(2026, 1, 5))) as naive:  # noqa: DTZ001
        with pytest.raises(InvalidStateError, match="naive"):
            start_run(naive, RunState.begin("n", "T1", "a", {}), session="s")
        with pytest.raises(UnknownRunError):
            load_state(naive, "n")


def test_the_schema_is_not_laid_over_tables_made_by_hand(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "new.db")) as empty:
        empty.execute("CREATE TABLE agent_runs (mine TEXT)")
        with pytest.raises(ForeignFileError, match="begin with a new file"):
            create_schema(empty)
        assert len(empty.execute("SELECT 1 FROM sqlite_schema").fetchall()) == 1
