"""Backups: whole, verified before they bear a name, and never over another file."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlite_bytes import parts
from store_parts import files, new_database, rows

from lesson_lib.checkpoints.archive import Keep, create_archive, read_archive
from lesson_lib.errors import (
    CorruptStateError,
    ForeignFileError,
    LessonError,
    StorageError,
    TransactionError,
)
from lesson_lib.model import RunState
from lesson_lib.processes import run_python
from lesson_lib.recovery import backups
from lesson_lib.recovery.recover import recover
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect
from lesson_lib.sweep import run_session
from lesson_lib.sweep.hooks import Point, around
from lesson_lib.tickets import Tools, ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

RUN = "run-T104"
KEEP = Keep(TICKET_SCHEMA)
back_up = partial(backups.back_up, schema=TICKET_SCHEMA)
restore = partial(backups.restore, schema=TICKET_SCHEMA)


def verify(database: Path, acknowledged: dict[str, int] | None = None) -> dict[str, int]:
    return backups.verify(database, TICKET_SCHEMA, acknowledged)


@pytest.fixture
def store(database: Path, tools: Tools) -> Iterator[SQLiteStore]:
    """Open a database whose run has been at version 2 for so long that its WAL is empty."""
    with closing(connect(database)) as opened:
        create_archive(opened)
        store = SQLiteStore(opened, "session-1", (KEEP,))
        ticket_agent.start(store, RUN)
        go_on(store, tools, 2)
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        yield store


@pytest.fixture
def connection(store: SQLiteStore) -> AgentConnection:
    return store.connection


def go_on(store: SQLiteStore, tools: Tools, actions: int) -> None:
    state = store.load_state(RUN)
    for _ in range(actions):
        state = ticket_agent.run_next_action(store, state, tools)


def copy_file(source: Path, target: Path) -> None:
    """Copy as another program would: in this process it would end our locks on the file."""
    run_python("import shutil, sys; shutil.copyfile(*sys.argv[1:])", source, target)


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".part" in path.name)


def test_a_copied_file_is_whole_and_old(tmp_path: Path, store: SQLiteStore, tools: Tools) -> None:
    connection = store.connection
    copy_file(connection.path, tmp_path / "lucky.db")
    assert verify(tmp_path / "lucky.db", {RUN: 2}) == {RUN: 2}
    go_on(store, tools, 2)
    ticket_agent.start(store, "run-T101")
    copy_file(connection.path, tmp_path / "copy.db")
    assert verify(tmp_path / "copy.db") == {RUN: 2}
    with pytest.raises(CorruptStateError, match=r"at version 4 before, this file has version 2"):
        verify(tmp_path / "copy.db", {RUN: 4})
    with pytest.raises(
        CorruptStateError, match=r"run-T101 was at version 0 before, .* no such run"
    ):
        verify(tmp_path / "copy.db", {RUN: 2, "run-T101": 0})


def test_a_backup_holds_all_that_was_committed(
    tmp_path: Path, store: SQLiteStore, tools: Tools
) -> None:
    connection = store.connection
    go_on(store, tools, 1)
    assert back_up(connection, tmp_path / "good.db") == {RUN: 3}
    assert rows(tmp_path / "good.db") == rows(connection.path)
    assert left_over(tmp_path) == []
    with closing(connect(tmp_path / "good.db")) as copy:
        report = recover(copy, RUN, "session-2", ticket_agent)
        assert (report.step, report.state) == ("newest checkpoint", store.load_state(RUN))
    # The database itself goes on.
    go_on(store, tools, 1)
    assert store.load_state(RUN).status == "completed"


def test_a_backup_of_a_database_without_an_archive(tmp_path: Path) -> None:
    with closing(connect(new_database(tmp_path))) as plain:
        ticket_agent.start(SQLiteStore(plain, "session-1"), "run-T102")
        assert back_up(plain, tmp_path / "good.db") == {"run-T102": 0}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_backup_is_as_private_as_its_source(
    tmp_path: Path, connection: AgentConnection, mode: int
) -> None:
    connection.path.chmod(mode)
    back_up(connection, tmp_path / "good.db")
    assert stat.S_IMODE((tmp_path / "good.db").stat().st_mode) == mode


@pytest.mark.parametrize("name", ["agent.db", "other.db", "old.db", "torn.db"])
def test_no_file_is_overwritten(tmp_path: Path, connection: AgentConnection, name: str) -> None:
    (tmp_path / "other.db").write_text("precious", "utf-8")
    (tmp_path / "old.db-wal").write_text("of another file", "utf-8")
    (tmp_path / "torn.db-journal").write_text("of another file", "utf-8")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(StorageError, match="is there already: name a new file"):
        back_up(connection, tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert (tmp_path / "other.db").read_text("utf-8") == "precious"
    assert SQLiteStore(connection, "s").load_state(RUN).version == 2


def test_where_no_file_can_be_made(tmp_path: Path, connection: AgentConnection) -> None:
    with pytest.raises(StorageError, match="cannot be used"):
        back_up(connection, tmp_path / "no such folder" / "good.db")
    with connection, pytest.raises(TransactionError):
        back_up(connection, tmp_path / "good.db")
    assert left_over(tmp_path) == []


DAMAGE = {
    "UPDATE run_checkpoints SET body = x'00' WHERE version = 2": "the checksum differs",
    "DELETE FROM agent_events WHERE sequence = 2": "gap",
    "UPDATE agent_runs SET version = 7": "at version 7",
    "PRAGMA ignore_check_constraints = ON; UPDATE agent_events SET created_at_utc = 'never'": (
        "is damaged"
    ),
    "PRAGMA foreign_keys = OFF; INSERT INTO tool_effects VALUES ('k', 'no run', 't', '', '1')": (
        "is damaged"
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_cannot_be_trusted_gets_no_name(
    tmp_path: Path, connection: AgentConnection, damage: str
) -> None:
    for statement in damage.split("; "):
        connection.execute(statement)
    with pytest.raises(CorruptStateError, match=DAMAGE[damage]):
        back_up(connection, tmp_path / "good.db")
    assert not (tmp_path / "good.db").exists()
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE agent_runs SET context_json = replace(context_json, 'urgent', 'normal')",
        """INSERT INTO run_checkpoints (run_id, version, schema_version, compression, body, sha256)
        SELECT run_id, version, schema_version, compression, x'00', 'x' FROM run_checkpoints""",
    ],
)
def test_a_row_that_contradicts_its_checkpoint_gets_no_name(
    tmp_path: Path, connection: AgentConnection, damage: str
) -> None:
    connection.execute(damage)
    with pytest.raises(CorruptStateError, match="version 2 of run-T104 cannot be trusted"):
        back_up(connection, tmp_path / "good.db")


def test_a_run_that_nobody_kept_on_is_backed_up(
    tmp_path: Path, store: SQLiteStore, tools: Tools
) -> None:
    go_on(SQLiteStore(store.connection, "session-1"), tools, 1)
    assert back_up(store.connection, tmp_path / "good.db") == {RUN: 3}


def test_a_file_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = backups.verify

    def appears(*arguments: Any) -> dict[str, int]:
        (tmp_path / "good.db").write_text("precious", "utf-8")
        return whole(*arguments)

    monkeypatch.setattr(backups, "verify", appears)
    with pytest.raises(StorageError, match="File exists"):
        back_up(connection, tmp_path / "good.db")
    assert (tmp_path / "good.db").read_text("utf-8") == "precious"
    assert left_over(tmp_path) == []


def test_to_verify_and_to_restore_change_no_byte(
    tmp_path: Path, connection: AgentConnection
) -> None:
    connection.execute("VACUUM INTO ?", (str(tmp_path / "rolled.db"),))  # without a WAL
    back_up(connection, tmp_path / "good.db")
    (tmp_path / "empty.db").touch()
    (tmp_path / "kept").mkdir()
    for name in ("rolled.db", "good.db", "empty.db"):
        (tmp_path / name).rename(tmp_path / "kept" / name)
    before = files(tmp_path / "kept")
    for name in ("rolled.db", "good.db"):
        assert verify(tmp_path / "kept" / name) == {RUN: 2}
        assert restore(tmp_path / "kept" / name, tmp_path / name) == {RUN: 2}
    with pytest.raises(ForeignFileError):
        verify(tmp_path / "kept" / "empty.db")
    assert files(tmp_path / "kept") == before


@pytest.mark.parametrize("each", [67, pytest.param(3, marks=pytest.mark.prove)])
def test_any_byte_of_the_schema_that_changes_is_an_error_of_ours_or_none(
    tmp_path: Path, connection: AgentConnection, each: int
) -> None:
    back_up(connection, tmp_path / "good.db")
    content = (tmp_path / "good.db").read_bytes()
    for at in range(0, 4096, each):
        for bit in (1, 128):
            changed = content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
            (tmp_path / "bad.db").write_bytes(changed)
            with suppress(LessonError):
                verify(tmp_path / "bad.db")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "loop"])
def test_a_name_that_no_file_can_have_is_an_error_of_ours(
    tmp_path: Path, connection: AgentConnection, name: str
) -> None:
    if name == "loop":
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StorageError):
        back_up(connection, tmp_path / name)
    with pytest.raises(StorageError):
        verify(tmp_path / name)


def test_a_damaged_page_is_found(tmp_path: Path, connection: AgentConnection) -> None:
    back_up(connection, tmp_path / "good.db")
    content = bytearray((tmp_path / "good.db").read_bytes())
    content[-4096:] = bytes(4096)
    (tmp_path / "bad.db").write_bytes(content)
    with pytest.raises((CorruptStateError, StorageError), match="damaged"):
        verify(tmp_path / "bad.db")


def test_a_newest_checkpoint_that_sqlite_cannot_read_is_found(
    tmp_path: Path, connection: AgentConnection
) -> None:
    back_up(connection, tmp_path / "bad.db")
    stored = [p for p in parts(tmp_path / "bad.db", "run_checkpoints") if p.part == "compression"]
    (words,) = (p for p in stored if p.rowid == max(each.rowid for each in stored))
    with (tmp_path / "bad.db").open("r+b") as file:
        file.seek(words.start)
        file.write(b"\xff")
    with pytest.raises(CorruptStateError, match="be trusted: its bytes are not those"):
        verify(tmp_path / "bad.db")


def test_a_copy_that_missed_a_commit_gets_no_name(
    tmp_path: Path, store: SQLiteStore, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old.db"
    back_up(store.connection, old)
    go_on(store, tools, 1)

    def copy_the_old_one(self: AgentConnection, target: sqlite3.Connection, **_: Any) -> None:
        with closing(sqlite3.connect(old)) as source:
            source.backup(target)

    monkeypatch.setattr(AgentConnection, "backup", copy_the_old_one)
    with pytest.raises(CorruptStateError, match="at version 3 before, this file has version 2"):
        back_up(store.connection, tmp_path / "good.db")
    assert not (tmp_path / "good.db").exists()


def test_to_verify_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        verify(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("no database " * 20, "utf-8")
    before = files(tmp_path)
    with pytest.raises(ForeignFileError):
        verify(tmp_path / "text.db")
    assert files(tmp_path) == before


def test_a_restored_database_goes_on(tmp_path: Path, store: SQLiteStore, tools: Tools) -> None:
    back_up(store.connection, tmp_path / "good.db")
    with pytest.raises(StorageError, match="is there already"):
        restore(tmp_path / "good.db", store.connection.path)
    with pytest.raises(StorageError, match="No such file"):
        restore(tmp_path / "none.db", tmp_path / "new.db")
    assert restore(tmp_path / "good.db", tmp_path / "new.db") == {RUN: 2}
    with closing(connect(tmp_path / "new.db")) as opened:
        restored = SQLiteStore(opened, "session-2", (KEEP,))
        report = recover(opened, RUN, "session-2", ticket_agent)
        assert report.state is not None
        ticket_agent.run_to_end(restored, report.state, tools)
        assert [kept.version for kept in read_archive(opened, RUN)] == [4, 3, 2, 1, 0]


def test_a_backup_while_another_writes_is_one_moment(
    tmp_path: Path, connection: AgentConnection
) -> None:
    stop, errors = threading.Event(), []

    def write() -> None:
        with closing(connect(connection.path)) as own:
            store, number = SQLiteStore(own, "s"), 0
            while not stop.is_set():
                number += 1
                try:
                    store.start_run(RunState.begin(f"run-{number}", "T", "a", {}))
                except StorageError as error:
                    errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            found = verify(back_to(connection, tmp_path / f"{number}.db"))
            numbers = sorted(int(name.removeprefix("run-")) for name in found if name != RUN)
            assert numbers == list(range(1, len(numbers) + 1))
    finally:
        stop.set()
        writer.join()
    assert errors == []


def back_to(connection: AgentConnection, target: Path) -> Path:
    back_up(connection, target)
    return target


def test_a_backup_in_steps_begins_again_when_another_writes(
    tmp_path: Path, connection: AgentConnection
) -> None:
    left, tickets = [], ["T101", "T102", "T103"]
    with (
        closing(connect(connection.path)) as other,
        closing(sqlite3.connect(tmp_path / "steps.db")) as target,
    ):

        def between(_status: int, remaining: int, _total: int) -> None:
            left.append(remaining)
            if tickets:
                ticket_agent.start(SQLiteStore(other, "s"), f"run-{tickets.pop()}")

        connection.backup(target, pages=2, progress=between)
    assert sum(a <= b for a, b in pairwise(left)) == 3


def backing_up(folder: Path, session: str, point: Point) -> None:
    """Be a session that makes a backup, and may be killed at each of the calls that it makes."""
    with ExitStack() as stack:
        for owner, name in (
            (AgentConnection, "backup"),
            (backups, "verify"),
            (os, "link"),
            (os, "fsync"),
        ):
            stack.enter_context(around(owner, name, point, lambda *_, name=name: name))
        connection = stack.enter_context(closing(connect(folder.parent / "agent.db")))
        back_up(connection, folder / "good.db")
    point("done")


@pytest.mark.skipif(os.name == "nt", reason="there it is another call that gives the name")
def test_killed_anywhere_there_is_a_whole_backup_or_none(
    tmp_path: Path, connection: AgentConnection
) -> None:
    entry = "test_backups:backing_up"
    points = run_session(entry, tmp_path / "whole", "s")
    assert points[-5:] == ["before link", "after link", "before fsync", "after fsync", "done"]
    assert left_over(tmp_path / "whole") == []
    found = []
    for die_at in range(1, len(points) + 1):
        target = tmp_path / str(die_at) / "good.db"
        run_session(entry, target.parent, "s", die_at)
        found.append(target.exists())
        if target.exists():
            assert verify(target) == {RUN: 2}
    assert found == [False] * (len(points) - 4) + [True] * 4


def test_a_run_that_is_kept_as_a_log_is_backed_up_too(
    tmp_path: Path, connection: AgentConnection
) -> None:
    SQLiteStore(connection, "s").record_event(RUN, "checkpoint_saved", "look", {"version": 3})
    with pytest.raises(CorruptStateError, match="its events tell of 3 checkpoints"):
        back_up(connection, tmp_path / "refused.db")
    connection.execute("CREATE TABLE run_log (run_id TEXT)")
    connection.execute("INSERT INTO run_log VALUES (?)", (RUN,))
    assert back_up(connection, tmp_path / "good.db") == {RUN: 2}
