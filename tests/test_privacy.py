"""An event holds what is allowed, a secret is in no file, and only its owner reads the file."""

from __future__ import annotations

import ast
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import rows

import lesson_lib
from lesson_lib.checkpoints import private_file
from lesson_lib.checkpoints.archive import Keep, create_archive
from lesson_lib.checkpoints.event_guard import ALLOWED, guard_events
from lesson_lib.checkpoints.history import Window, create_history
from lesson_lib.checkpoints.private_file import connect_private, others_can_read
from lesson_lib.checkpoints.redaction import Redact, redact
from lesson_lib.errors import InvalidStateError, StorageError
from lesson_lib.labs.checkpoint_format.searching import found_in_checkpoints, found_in_files
from lesson_lib.model import RunState, Step, ToolCall
from lesson_lib.processes import run_python
from lesson_lib.sqlite import (
    AgentConnection,
    SQLiteStore,
    connect,
    create_schema,
    execute_once,
    load_state,
    record_event,
)
from lesson_lib.sqlite.effects import LONGEST_NAME
from lesson_lib.store import Rider, Saving
from lesson_lib.tickets import Ticket, Tools, new_run, read_tickets, ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

SECRET = "Bearer 8f3kQ2xLmZ9tW4"
T105 = read_tickets()[4]
TOLD = replace(T105, issue=f"the board asks for {SECRET}")
KEEP = Keep(TICKET_SCHEMA)
on_posix = pytest.mark.skipif(os.name == "nt", reason="modes do nothing on Windows")


def start(connection: AgentConnection, ticket: Ticket) -> RunState:
    return SQLiteStore(connection, "s1").start_run(new_run(ticket))


def read(papers: Any) -> Step:
    return Step("read", {"documents": papers}, "read")


@pytest.fixture
def guarded(connection: AgentConnection) -> AgentConnection:
    create_archive(connection)
    start(connection, T105)
    guard_events(connection)
    return connection


def tell(connection: AgentConnection, event_type: str, **detail: Any) -> None:
    with connection:
        record_event(
            connection,
            run_id="run-T105",
            session="s1",
            event_type=event_type,
            action="look",
            detail=detail,
        )


# The allow-list


@pytest.mark.parametrize("event_type", ALLOWED)
def test_every_allowed_field_can_be_written_and_no_other(
    guarded: AgentConnection, database: Path, event_type: str
) -> None:
    tell(guarded, event_type, **dict.fromkeys(ALLOWED[event_type], "word"))
    tell(guarded, event_type, **dict.fromkeys(ALLOWED[event_type], 7))
    tell(guarded, event_type)
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match=f"the detail of a {event_type} event may"):
        tell(guarded, event_type, **dict.fromkeys(ALLOWED[event_type], 7), prompt="You are")
    assert rows(database) == before


@pytest.mark.parametrize(
    "value",
    ["x" * (LONGEST_NAME + 1), ["text"], {"text": 1}, 0.5, True, None, "ä" * 256],
    ids=lambda value: repr(value)[:12],
)
def test_an_allowed_field_holds_a_short_text_or_a_number(
    guarded: AgentConnection, value: Any
) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="each short text or a number"):
        tell(guarded, "tool_executed", key=value)


def test_an_event_cannot_get_more_later(guarded: AgentConnection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="may hold nothing"):
        guarded.execute("""UPDATE agent_events SET detail = '{"prompt": "secret"}'""")


def test_a_key_of_any_length_that_execute_once_takes_can_be_recorded(
    guarded: AgentConnection,
) -> None:
    calls: list[int] = []
    for length in (LONGEST_NAME, LONGEST_NAME + 1):
        for _ in range(2):
            with suppress(InvalidStateError):
                for n, letter in enumerate("k\0", 1):
                    note = partial(calls.append, n)
                    call = ToolCall("run-T105", letter * length, "look", {}, note)
                    execute_once(guarded, call, session="s")
    assert calls == [1, 2]


def test_an_unknown_type_of_event_is_refused(guarded: AgentConnection, database: Path) -> None:
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match=r"add it to event_guard\.ALLOWED"):
        tell(guarded, "model_thought")
    assert rows(database) == before


@pytest.mark.parametrize("detail", ['"secret"', '["secret"]', "7", '{"": "secret"}'])
def test_a_detail_of_another_shape_is_refused(guarded: AgentConnection, detail: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="may hold"):
        guarded.execute(
            "INSERT INTO agent_events VALUES ('run-T105', 2, 's', 'tool_executed', 'a', ?, ?)",
            (detail, "2026-01-01T00:00Z"),
        )


def test_a_refused_event_takes_its_checkpoint_with_it(guarded: AgentConnection) -> None:
    with pytest.raises(sqlite3.IntegrityError), guarded:
        guarded.execute("UPDATE agent_runs SET version = 1")
        record_event(
            guarded,
            run_id="run-T105",
            session="s1",
            event_type="checkpoint_saved",
            action="look",
            detail={"version": 1, "context": TOLD.issue},
        )
    assert load_state(guarded, "run-T105").version == 0


def test_the_guard_is_there_for_every_connection_and_renewed_by_every_call(
    guarded: AgentConnection, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = """INSERT INTO agent_events
        VALUES ('run-T105', 2, 's', 'tool_executed', 'a', '{"prompt": ""}', '2026-01-01T0Z')"""
    with closing(sqlite3.connect(database)) as plain, pytest.raises(sqlite3.IntegrityError):
        plain.execute(insert)
    with pytest.raises(sqlite3.IntegrityError):
        tell(guarded, "page_sent")
    monkeypatch.setitem(ALLOWED, "page_sent", ("key",))
    guard_events(guarded)
    tell(guarded, "page_sent", key="run-T105:page")


def test_everything_that_the_agent_and_its_tools_tell_is_allowed(
    guarded: AgentConnection, tools: Tools
) -> None:
    store = SQLiteStore(guarded, "s1", (KEEP,))
    ticket_agent.run_to_end(store, load_state(guarded, "run-T105"), tools)
    assert load_state(guarded, "run-T105").status == "completed"


def event_types() -> Iterator[tuple[str, str]]:
    """Yield the types of events that the package writes, each with its file."""
    for path in Path(lesson_lib.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            said = node.args if name in ("_record", "record", "record_event", "tell") else []
            said = said + [
                keyword.value for keyword in node.keywords if keyword.arg == "event_type"
            ]
            for value in said:
                for word in [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]:
                    if isinstance(word, ast.Constant) and "_" in str(word.value):
                        yield str(word.value), path.name


def test_every_type_of_event_that_the_package_writes_is_listed() -> None:
    found = dict(event_types())
    assert {"run_started", "tool_executed", "question_asked", "command_dead"} <= set(found)
    assert {name: file for name, file in found.items() if name not in ALLOWED} == {}


# Redaction


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"log in with {SECRET}.", "log in with [token removed]"),
        ("Authorization: bearer abc.def-ghi", "Authorization: [token removed]"),
        ("sk-live_9a8b7c6d5e4f3a2b is it", "[API key removed] is it"),
        ("key AKIAIOSFODNN7EXAMPLE", "key [API key removed]"),
        ("ghp_0123456789abcdefghij", "[API key removed]"),
        ("ask ada.l+x@mail.example.com today", "ask [e-mail address removed] today"),
        ("<jürgen@müller.example>", "<[e-mail address removed]>"),
        ("card 4111 1111 1111 1111.", "card [card number removed]."),
        ("5500-0000-0000-0004", "[card number removed]"),
        ("4111 1111 1111 1111 123", "[card number removed] 123"),
        ("4111 1111 1111 1111 12/27", "[card number removed] 12/27"),
        ("2026-11-30 4111111111111111", "2026-11-30 [card number removed]"),
        ("4111  1111  1111  1111", "[card number removed]"),
        ("4111111111111111 5500000000000004", "[card number removed] [card number removed]"),
        ("bearer sk-live_9a8b7c6d5e4f bearer abcdefgh", "[token removed] [token removed]"),
        ("github_pat_11ABCDEFG0abcdefghijkl", "[API key removed]"),
        ("x4111111111111111sk-0123456789abcdef", "x[card number removed][API key removed]"),
        ("378282246310005", "[card number removed]"),
        (4111111111111111, "[card number removed]"),
        ([{"a": ["x@y.zz"]}], [{"a": ["[e-mail address removed]"]}]),
        ({"x@y.zz": 1}, {"[e-mail address removed]": 1}),
    ],
    ids=str,
)
def test_what_a_pattern_knows_is_removed(text: Any, left: Any) -> None:
    assert redact(text) == left


@pytest.mark.parametrize(
    "harmless",
    [
        "run-T105:lookup_runbook",
        "order 4111 1111 1111 1112",  # its check digit is wrong
        1_767_603_600_000_000,  # a time in microseconds
        "2026-01-05T09:00:00.000000Z",
        "3 of 14 at 12:30 @ dock 4",
        "the bearer of this letter",
        "task-force skills",
        "skateboarding-club",
        {"outage_minutes": 47, "safety_impact": True, "ratio": 0.5, "nothing": None},
        [read_tickets()[0].issue, 10**15],
    ],
    ids=str,
)
def test_what_is_no_secret_stays_as_it_is(harmless: Any) -> None:
    assert redact(harmless) == harmless


def test_two_names_that_become_one_are_refused() -> None:
    with pytest.raises(InvalidStateError, match="become one"):
        redact({"a@b.cc": 1, "c@d.ee": 2})


def test_a_long_text_does_not_take_long() -> None:
    for long in ("x" * 900_000, "4" * 900_000, "a.b-" * 200_000, "1 " * 400_000):
        assert len(str(redact(long))) > 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
secrets = st.sampled_from([SECRET, "ada@example.com", "4111 1111 1111 1111", "sk-0123456789abcdef"])


@settings(derandomize=True, deadline=None, max_examples=50, database=None)
@given(json_values, secrets, st.text(alphabet="ab .,:"), st.text(alphabet="ab .,:"))
def test_redaction_finds_it_anywhere_and_changes_nothing_a_second_time(
    value: Any, secret: str, before: str, after: str
) -> None:
    clean = redact({"value": value, "told": [f"{before} {secret} {after}"]})
    assert secret not in json.dumps(clean)
    assert redact(clean) == clean


def test_what_is_redacted_before_the_save_is_in_no_file(
    connection: AgentConnection, database: Path, tools: Tools
) -> None:
    create_archive(connection)
    create_history(connection)
    talk = {"conversation": [{"role": "person", "text": TOLD.issue}]}
    store = SQLiteStore(connection, "s1", (Redact(), Window(), KEEP))
    run = store.start_run(new_run(TOLD))
    step = replace(read([SECRET, "x " * 2000]), appended=talk, because=TOLD.issue)
    run = store.save_checkpoint(run, step)
    with connection:  # what was changed lies in the files beside the main one
        connection.execute("UPDATE agent_runs SET context_json = context_json")
    assert run.context["documents"][0] == "[token removed]"
    assert found_in_files(database, SECRET) == []
    assert found_in_checkpoints(connection, SECRET) == []


def test_the_riders_after_it_are_told_the_redacted_step(connection: AgentConnection) -> None:
    seen: list[Saving] = []

    class Watching(Rider):
        def write(self, connection: Any, saving: Saving) -> None:
            seen.append(saving)

    store = SQLiteStore(connection, "s1", (Redact(), Watching()))
    run = store.start_run(new_run(T105))
    talk = {"conversation": [SECRET]}
    store.save_checkpoint(run, replace(read([SECRET]), appended=talk, because=SECRET))
    start, save = seen
    assert start.step is None
    assert save.step == Step(
        "read",
        {"documents": ["[token removed]"]},
        "read",
        "[token removed]",
        {"conversation": ["[token removed]"]},
    )
    assert save.before == run


def test_what_a_tool_brings_is_redacted_before_it_is_saved(
    connection: AgentConnection, database: Path
) -> None:
    start(connection, T105)
    for key, function in (("raw", lambda: SECRET), ("clean", lambda: redact(SECRET))):
        call = ToolCall("run-T105", key, "look", {}, function)
        execute_once(connection, call, session="s1")
    effects = {row[0]: row[4] for row in rows(database)["tool_effects"]}
    assert effects == {"raw": f'"{SECRET}"', "clean": '"[token removed]"'}


# Where a secret is


def test_a_secret_is_found_in_each_kind_of_file(
    connection: AgentConnection, database: Path
) -> None:
    create_archive(connection)
    assert found_in_files(database, SECRET) == []
    start(connection, TOLD)
    assert found_in_files(database, SECRET) == ["agent.db-wal"]
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert found_in_files(database, SECRET) == ["agent.db"]
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.execute("PRAGMA cache_size = 1").fetchall()
    with connection:
        connection.execute("UPDATE agent_runs SET ticket_id = 'T999'")
        connection.execute("CREATE TABLE filler (body BLOB)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(100000))")
        assert found_in_files(database, SECRET) == ["agent.db", "agent.db-journal"]


def test_a_secret_is_found_as_json_writes_it(connection: AgentConnection, database: Path) -> None:
    odd = 'he said "now"\nand left'
    create_archive(connection)
    store = SQLiteStore(connection, "s1", (KEEP,))
    store.save_checkpoint(store.start_run(new_run(replace(T105, issue=odd))), read([]))
    assert found_in_files(database, odd) == ["agent.db-wal"]
    assert found_in_checkpoints(connection, odd) == ["run-T105 version 0", "run-T105 version 1"]


def test_compression_hides_a_secret_from_the_search_of_bytes_only(
    connection: AgentConnection, database: Path
) -> None:
    create_archive(connection)
    papers = [*(ticket.issue for ticket in read_tickets()), "x" * 999, SECRET]
    store = SQLiteStore(connection, "s1", (KEEP,))
    run = store.save_checkpoint(store.start_run(new_run(T105)), read(papers))
    store.save_checkpoint(run, read([]))
    # One that does not decompress stands before the others.
    connection.execute(
        "UPDATE run_checkpoints SET body = x'00', compression = 'gzip' WHERE version = 0"
    )
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert found_in_files(database, SECRET) == []
    assert found_in_checkpoints(connection, SECRET) == ["run-T105 version 1"]


def test_the_search_leaves_the_locks_of_this_process_alone(
    connection: AgentConnection, database: Path
) -> None:
    with connection:
        connection.execute("PRAGMA user_version = 1")
        found_in_files(database, SECRET)
        other = """
import sys
from lesson_lib.sqlite import connect
connection = connect(sys.argv[1], timeout=0)
try:
    with connection:
        print("got in")
except Exception as error:
    print(type(error).__name__)
"""
        assert run_python(other, database).printed == "StorageError\n"


# Who can read it


@on_posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_every_file_of_a_private_database_is_its_owners_from_the_first_byte(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    real = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        opened = real(path, flags, mode, **options)
        modes.append(os.fstat(opened).st_mode & 0o777)
        return opened

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(umask)
    try:
        path = tmp_path / "agent.db"
        with closing(connect_private(path)) as connection:
            create_schema(connection)
            create_archive(connection)
            start(connection, T105)
            found = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
            assert not any(map(others_can_read, path.parent.iterdir()))
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            with connection:
                connection.execute("UPDATE agent_runs SET ticket_id = 'T9'")
                journal = path.with_name("agent.db-journal")
                assert journal.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert found == dict.fromkeys(("agent.db", "agent.db-wal", "agent.db-shm"), 0o600)


@on_posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_file_that_others_can_use_is_refused_and_left_alone(
    tmp_path: Path, suffix: str, mode: int
) -> None:
    path = tmp_path / "agent.db"
    connect_private(path).close()
    file = tmp_path / f"agent.db{suffix}"
    file.touch()
    file.chmod(mode)
    with pytest.raises(StorageError, match=rf"others can read .*agent\.db{suffix}, and may have"):
        connect_private(path)
    assert file.stat().st_mode & 0o777 == mode


@on_posix
def test_a_link_leads_to_a_private_file_too(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "agent.db")
    with closing(connect_private(link)) as connection:
        assert connection.path == tmp_path.resolve() / "agent.db"
    assert (tmp_path / "agent.db").stat().st_mode & 0o777 == 0o600


def test_a_private_connection_overwrites_what_it_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_without(path: Path, **options: Any) -> AgentConnection:
        connection = connect(path, **options)  # some builds of SQLite begin with it, some without
        connection.execute("PRAGMA secure_delete = OFF").fetchall()
        return connection

    monkeypatch.setattr(private_file, "connect", connect_without)
    with closing(connect_private(tmp_path / "agent.db")) as connection:
        assert connection.execute("PRAGMA secure_delete").fetchone()[0] == 1


def test_a_private_database_is_opened_again_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with closing(connect_private(path)) as connection:
        create_schema(connection)
        start(connection, T105)
    with closing(connect_private(path)) as connection:
        assert load_state(connection, "run-T105").version == 0


def test_a_file_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be made"):
        connect_private(tmp_path / "file" / "agent.db")
