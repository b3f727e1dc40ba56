"""Backups: whole, verified before they bear a name, and never over another file."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from remote_parts import CAN_FORK, processes
from sqlite_bytes import parts
from store_parts import files, new_database, rows

from lesson_lib import agent, crash
from lesson_lib.checkpoints.archive import create_archive, read_archive, save_kept
from lesson_lib.errors import (
    CorruptStateError,
    ForeignFileError,
    LessonError,
    StorageError,
    TransactionError,
)
from lesson_lib.recovery import backups
from lesson_lib.recovery.backups import back_up, restore, verify
from lesson_lib.recovery.recover import recover
from lesson_lib.stores.sqlite import AgentConnection, connect, load_state, start_run
from lesson_lib.tickets import Tools, find_ticket, read_tickets

RUN = "run-T104"


@pytest.fixture
def connection(database: Path, tools: Tools) -> Iterator[AgentConnection]:
    """Open a database whose run has been at version 2 for so long that its WAL is empty."""
    with closing(connect(database)) as opened:
        create_archive(opened)
        agent.start(opened, find_ticket(read_tickets(), "T104"), "session-1")
        go_on(opened, tools, 2)
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        yield opened


def go_on(connection: AgentConnection, tools: Tools, actions: int) -> None:
    state = load_state(connection, RUN)
    for _ in range(actions):
        state = agent.run_next_action(connection, state, "session-1", tools, save=save_kept)


def start(connection: AgentConnection, ticket_id: str) -> None:
    agent.start(connection, find_ticket(read_tickets(), ticket_id), "session-1")


def copy_file(source: Path, target: Path) -> None:
    """Copy as another program would: in this process it would end our locks on the file."""
    crash.run_python("import shutil, sys; shutil.copyfile(*sys.argv[1:])", source, target)


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".part" in path.name)


def test_a_copied_file_is_whole_and_old(
    tmp_path: Path, connection: AgentConnection, tools: Tools
) -> None:
    copy_file(connection.path, tmp_path / "lucky.db")
    assert verify(tmp_path / "lucky.db", {RUN: 2}) == {RUN: 2}
    go_on(connection, tools, 2)
    start(connection, "T101")
    copy_file(connection.path, tmp_path / "copy.db")
    assert verify(tmp_path / "copy.db") == {RUN: 2}
    with pytest.raises(CorruptStateError, match=r"at version 4 before, this file has version 2"):
        verify(tmp_path / "copy.db", {RUN: 4})
    with pytest.raises(
        CorruptStateError, match=r"run-T101 was at version 0 before, .* no such run"
    ):
        verify(tmp_path / "copy.db", {RUN: 2, "run-T101": 0})


def test_a_backup_holds_all_that_was_committed(
    tmp_path: Path, connection: AgentConnection, tools: Tools
) -> None:
    go_on(connection, tools, 1)
    assert back_up(connection, tmp_path / "good.db") == {RUN: 3}
    assert rows(tmp_path / "good.db") == rows(connection.path)
    assert left_over(tmp_path) == []
    with closing(connect(tmp_path / "good.db")) as copy:
        report = recover(copy, RUN, "session-2")
        assert (report.step, report.state) == ("newest checkpoint", load_state(connection, RUN))
    # The database itself goes on.
    go_on(connection, tools, 1)
    assert load_state(connection, RUN).status == "completed"


def test_a_backup_of_a_database_without_an_archive(tmp_path: Path) -> None:
    with closing(connect(new_database(tmp_path))) as plain:
        start(plain, "T102")
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
    assert load_state(connection, RUN).version == 2


def test_where_no_file_can_be_made(tmp_path: Path, connection: AgentConnection) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
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
    tmp_path: Path, connection: AgentConnection, tools: Tools
) -> None:
    agent.run_next_action(connection, load_state(connection, RUN), "session-1", tools)
    assert back_up(connection, tmp_path / "good.db") == {RUN: 3}


def test_a_file_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def appears(*arguments: Any) -> dict[str, int]:
        (tmp_path / "good.db").write_text("precious", "utf-8")
        return verify(*arguments)

    monkeypatch.setattr(backups, "verify", appears)
    with pytest.raises(StorageError, match="is there already"):
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


def test_any_byte_of_the_schema_that_changes_is_an_error_of_ours_or_none(
    tmp_path: Path, connection: AgentConnection
) -> None:
    back_up(connection, tmp_path / "good.db")
    content = (tmp_path / "good.db").read_bytes()
    for at in range(0, 4096, 7):
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
    with pytest.raises(CorruptStateError, match="be trusted: SQLite cannot read"):
        verify(tmp_path / "bad.db")


def test_a_copy_that_missed_a_commit_gets_no_name(
    tmp_path: Path, connection: AgentConnection, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old.db"
    back_up(connection, old)
    go_on(connection, tools, 1)

    def copy_the_old_one(self: AgentConnection, target: sqlite3.Connection, **_: Any) -> None:
        with closing(sqlite3.connect(old)) as source:
            source.backup(target)

    monkeypatch.setattr(AgentConnection, "backup", copy_the_old_one)
    with pytest.raises(CorruptStateError, match="at version 3 before, this file has version 2"):
        back_up(connection, tmp_path / "good.db")
    assert not (tmp_path / "good.db").exists()


def test_to_verify_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no file"):
        verify(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("no database " * 20, "utf-8")
    before = files(tmp_path)
    with pytest.raises(ForeignFileError):
        verify(tmp_path / "text.db")
    assert files(tmp_path) == before


def test_a_restored_database_goes_on(
    tmp_path: Path, connection: AgentConnection, tools: Tools
) -> None:
    back_up(connection, tmp_path / "good.db")
    with pytest.raises(StorageError, match="is there already"):
        restore(tmp_path / "good.db", connection.path)
    with pytest.raises(StorageError, match="there is no file"):
        restore(tmp_path / "none.db", tmp_path / "new.db")
    assert restore(tmp_path / "good.db", tmp_path / "new.db") == {RUN: 2}
    with closing(connect(tmp_path / "new.db")) as restored:
        report = recover(restored, RUN, "session-2")
        assert report.state is not None
        agent.run_to_end(restored, report.state, "session-2", tools, save=save_kept)
        assert [kept.version for kept in read_archive(restored, RUN)] == [4, 3, 2, 1, 0]


def test_a_backup_while_another_writes_is_one_moment(
    tmp_path: Path, connection: AgentConnection
) -> None:
    stop, errors = threading.Event(), []

    def write() -> None:
        with closing(connect(connection.path)) as own:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    start_run(
                        own,
                        run_id=f"run-{number}",
                        ticket_id="T",
                        session="s",
                        first_action="a",
                        context={},
                    )
                except StorageError as error:
                    errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            acknowledged = backups.verify(back_to(connection, tmp_path / f"{number}.db"))
            assert len(acknowledged) >= 1
            names = sorted(acknowledged, key=lambda name: int(name.partition("-")[2].strip("T")))
            made = [name for name in names if name != RUN]
            assert made == [f"run-{n}" for n in range(1, len(made) + 1)]
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
                start(other, tickets.pop())

        connection.backup(target, pages=2, progress=between)
    assert sum(a <= b for a, b in pairwise(left)) == 3


def session(database: Path, target: Path, die_at: int) -> None:
    """Be a child: make a backup, and die at one of the calls that it makes."""
    number = 0

    def dying(call: Any) -> Any:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            nonlocal number
            number += 1
            if number == die_at:
                crash.die("kill")
            found = call(*arguments, **more)
            number += 1
            if number == die_at:
                crash.die("kill")
            return found

        return wrapped

    AgentConnection.backup = dying(AgentConnection.backup)  # type: ignore[method-assign]
    backups.verify = dying(backups.verify)
    os.link = dying(os.link)
    with closing(connect(database)) as connection:
        back_up(connection, target)


@pytest.mark.skipif(not CAN_FORK, reason="spawning each child takes too long")
def test_killed_anywhere_there_is_a_whole_backup_or_none(
    tmp_path: Path, connection: AgentConnection
) -> None:
    found = []
    for die_at in range(1, 10):
        target = tmp_path / f"{die_at}.db"
        process = processes.Process(target=session, args=(connection.path, target, die_at))
        process.start()
        process.join()
        assert (process.exitcode == 0) == (die_at == 9)
        process.close()
        found.append(target.exists())
        if target.exists():
            assert verify(target) == {RUN: 2}
    assert found == [False] * 7 + [True] * 2
    # The last one has its name already.
    assert len([name for name in left_over(tmp_path) if name.endswith(".part")]) == 8
