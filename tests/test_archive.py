"""A checkpoint and its archive are written together, once, and never over another one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from sqlite_bytes import Stored, parts
from store_parts import rows

from lesson_lib import agent
from lesson_lib.checkpoints import archive, goldens
from lesson_lib.checkpoints.archive import (
    create_archive,
    keep,
    put,
    read_archive,
    read_kept,
    save_kept,
    write_kept,
)
from lesson_lib.checkpoints.codec import decode, encode
from lesson_lib.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointSizeError,
    InvalidStateError,
    StaleVersionError,
    StorageError,
    TransactionError,
)
from lesson_lib.json_text import to_json
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    delete_run,
    load_state,
    read_events,
    save_checkpoint,
    start_run,
)
from lesson_lib.tickets import Tools, find_ticket, read_tickets

STEP: dict[str, Any] = {"session": "session-1", "action": "talk", "next_action": "talk"}


@pytest.fixture
def state(connection: AgentConnection) -> RunState:
    create_archive(connection)
    create_archive(connection)
    return agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")


def versions(connection: AgentConnection) -> list[int]:
    return [kept.version for kept in read_archive(connection, "run-T104")]


def other_than(state: RunState) -> RunState:
    return replace(state, context_json=to_json(dict(state.context) | {"draft": "another"}))


def test_each_save_keeps_the_new_state_and_the_one_before(
    connection: AgentConnection, state: RunState, tools: Tools
) -> None:
    end = agent.run_to_end(connection, state, "session-1", tools, save=save_kept)
    assert versions(connection) == [4, 3, 2, 1, 0]
    newest, *_, first = map(decode, read_archive(connection, "run-T104"))
    assert newest == end == load_state(connection, "run-T104")
    assert first == state
    (third,) = read_archive(connection, "run-T104", version=3)
    assert decode(third).next_action == "finish"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"draft": "x" * 1_000_000}, CheckpointSizeError),
        ({"mood": "calm"}, InvalidStateError),
    ],
)
def test_what_is_refused_changes_no_row_of_any_table(
    connection: AgentConnection,
    database: Path,
    state: RunState,
    change: dict[str, Any],
    error: type[Exception],
) -> None:
    before = rows(database)
    with pytest.raises(error):
        save_kept(connection, state, context=state.context | change, **STEP)
    assert rows(database) == before


def test_a_failure_while_it_keeps_changes_no_row_of_any_table(
    connection: AgentConnection,
    database: Path,
    state: RunState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = save_kept(connection, state, context=state.context, **STEP)
    before = rows(database)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(archive, "put", fail)
    with pytest.raises(OSError, match="gone"):
        save_kept(connection, state, context=state.context, **STEP)
    assert rows(database) == before


def test_a_stale_writer_changes_nothing(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    save_kept(connection, state, context=state.context, **STEP)
    before = rows(database)
    with pytest.raises(StaleVersionError):
        save_kept(connection, state, context=state.context, **STEP)
    assert rows(database) == before


def test_a_file_that_was_replaced_under_a_session_is_noticed(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    old = save_kept(connection, state, context=state.context | {"draft": "old"}, **STEP)
    ours = other_than(old)
    before = rows(database)
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104 is stored with"):
        save_kept(connection, ours, context=ours.context, **STEP)
    assert rows(database) == before


def test_a_rival_in_the_archive_alone_is_noticed(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    new = save_kept(connection, state, context=state.context, **STEP)
    with connection:
        connection.execute("DELETE FROM run_checkpoints WHERE version = 1")
        put(connection, encode(other_than(new)))
    before = rows(database)
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104 is kept with"):
        save_kept(connection, new, context=new.context, **STEP)
    assert rows(database) == before


def test_a_rival_beside_the_own_one_is_a_conflict_too(
    connection: AgentConnection, state: RunState
) -> None:
    new = save_kept(connection, state, context=state.context, **STEP)
    put(connection, encode(other_than(new)))
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104 is kept with"):
        save_kept(connection, new, context=new.context, **STEP)


def test_what_another_session_saved_without_the_archive_is_not_overwritten(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    theirs = save_checkpoint(connection, state, context=state.context | {"draft": "x"}, **STEP)
    before = rows(database)
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104 is stored with"):
        save_kept(connection, other_than(theirs), context=state.context, **STEP)
    assert rows(database) == before


@pytest.mark.parametrize("name", ["v1-none", "v2-zstd", "v3-zstd"])
def test_a_row_of_an_older_schema_is_followed_as_loaded_and_as_stepped_up(
    connection: AgentConnection, name: str
) -> None:
    stepped_up = goldens.lay_down(connection, goldens.read_goldens()[name])
    loaded = load_state(connection, stepped_up.run_id)
    assert loaded.context != stepped_up.context
    for state in (loaded, stepped_up):
        with pytest.raises(KeyError), connection:
            assert write_kept(connection, state, context=stepped_up.context, **STEP)
            raise KeyError
    changed = other_than(stepped_up)
    with pytest.raises(CheckpointConflictError):
        save_kept(connection, changed, context=changed.context, **STEP)


def test_a_parent_that_cannot_be_kept_does_not_stop_the_run(
    connection: AgentConnection, state: RunState
) -> None:
    large = state.context | {"draft": "x" * 1_000_000}
    state = save_checkpoint(connection, state, context=large, **STEP)
    new = save_kept(connection, state, context=state.context | {"draft": ""}, **STEP)
    assert versions(connection) == [new.version] == [2]


@pytest.mark.parametrize("draft", ["y", "x" * 1_000_000])
def test_whoever_catches_in_his_block_has_no_row_without_its_archive(
    connection: AgentConnection, state: RunState, draft: str
) -> None:
    stray = encode(other_than(replace(state, version=1)))
    with connection:
        put(connection, stray)
        with pytest.raises((CheckpointConflictError, CheckpointSizeError)):
            write_kept(connection, state, context=state.context | {"draft": draft}, **STEP)
    assert load_state(connection, "run-T104") == state


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("run_id", b"run-T1?4"),
        ("run_id", b"run-T1\xff4"),
        ("version", b"\x07"),
        ("sha256", b"?" * 64),
    ],
)
def test_a_row_whose_own_name_is_damaged_is_not_trusted_and_kept_again(
    connection: AgentConnection, database: Path, state: RunState, column: str, value: bytes
) -> None:
    first = save_kept(connection, state, context=state.context, **STEP)
    second = save_kept(connection, first, context=first.context, **STEP)
    connection.close()
    damaged = max((p for p in parts(database, "run_checkpoints") if p.part == column), key=_place)
    with database.open("r+b") as file:
        file.seek(damaged.start)
        assert damaged.end - damaged.start == file.write(value)
    with closing(connect(database)) as reopened:
        newest, *older = read_kept(reopened, "run-T104")
        assert (newest.version, newest.state, bool(newest.problem)) == (2, None, True)
        assert [kept.state for kept in older] == [first, state]
        save_kept(reopened, second, context=second.context, **STEP)
        assert second in [kept.state for kept in read_kept(reopened, "run-T104", version=2)]


def test_a_damage_that_no_save_can_mend_is_named(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    state = save_kept(connection, state, context=state.context, **STEP)
    connection.close()
    stored = parts(database, "run_checkpoints")
    record = next(p for p in stored if p.part == "head of the record" and p.rowid == 2)
    content = bytearray(database.read_bytes())
    # The last serial type is that of sha256: 2 * 64 + 13 is a text, one less a blob.
    assert content[record.end - 2 : record.end] == b"\x81\x0d"
    content[record.end - 1] -= 1
    database.write_bytes(content)
    with closing(connect(database)) as reopened:
        before = rows(database)
        with pytest.raises(StorageError, match="is damaged where version 1 of run-T104"):
            save_kept(reopened, state, context=state.context, **STEP)
        assert rows(database) == before


def _place(part: Stored) -> int:
    return part.rowid


def test_a_row_without_memory_for_it_is_not_trusted(
    connection: AgentConnection, state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_kept(connection, state, context=state.context, **STEP)

    def fail(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(archive, "decode", fail)
    assert [kept.state for kept in read_kept(connection, "run-T104")] == [None, None]
    assert all(kept.problem for kept in read_kept(connection, "run-T104"))


@pytest.mark.parametrize(
    "sql",
    [
        "REPLACE INTO agent_runs SELECT * FROM agent_runs",
        """INSERT OR REPLACE INTO agent_runs (rowid, run_id, ticket_id, status, next_action,
        context_json, version) VALUES (1, 'run-new', 'T1', 'running', 'talk', '{}', 0)""",
    ],
)
def test_a_run_is_not_replaced_with_all_that_belongs_to_it(
    connection: AgentConnection, database: Path, state: RunState, sql: str
) -> None:
    save_kept(connection, state, context=state.context, **STEP)
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match="stored already"):
        connection.execute(sql)
    assert rows(database) == before


def test_a_name_from_an_enum_is_that_of_the_text(connection: AgentConnection) -> None:
    class Run(StrEnum):
        FIRST = "run-T104"

    create_schema(connection)
    create_archive(connection)
    ticket = asdict(find_ticket(read_tickets(), "T104"))
    fields = ("area", "issue", "outage_minutes", "safety_impact")
    state = start_run(
        connection,
        run_id=Run.FIRST,
        ticket_id="T104",
        session="session-1",
        first_action="talk",
        context={"ticket": {name: ticket[name] for name in fields}},
    )
    new = save_kept(connection, state, context=state.context, **STEP)
    assert [decode(kept) for kept in read_archive(connection, "run-T104")] == [new, state]
    assert save_kept(connection, load_state(connection, "run-T104"), context=state.context, **STEP)


def test_keeping_a_state_again_adds_nothing_whatever_its_compression(
    connection: AgentConnection, state: RunState
) -> None:
    with connection:
        put(connection, encode(state, "gzip"))
        keep(connection, state)
        keep(connection, state)
    assert versions(connection) == [0]


def test_a_context_that_is_spaced_otherwise_is_no_other_content(
    connection: AgentConnection, state: RunState
) -> None:
    spaced = replace(state, context_json=state.context_json.replace(": ", ":  "))
    assert spaced != state
    with connection:
        keep(connection, state)
        keep(connection, spaced)
    assert versions(connection) == [0]


def test_a_damaged_row_of_the_same_content_gets_its_bytes_again(
    connection: AgentConnection, state: RunState
) -> None:
    with connection:
        keep(connection, state)
        connection.execute("UPDATE run_checkpoints SET body = x'00'")
    with pytest.raises(CheckpointError):
        decode(read_archive(connection, "run-T104")[0])
    new = save_kept(connection, state, context=state.context, **STEP)
    assert [decode(kept) for kept in read_archive(connection, "run-T104")] == [new, state]


def test_a_damaged_row_of_other_content_contradicts_nobody(
    connection: AgentConnection, state: RunState
) -> None:
    other = encode(replace(state, context_json=to_json(dict(state.context) | {"draft": "x"})))
    with connection:
        put(connection, replace(other, body=b"damaged"))
        keep(connection, state)
    assert versions(connection) == [0, 0]


def test_the_archive_goes_with_its_run(
    connection: AgentConnection, state: RunState, tools: Tools
) -> None:
    agent.run_to_end(connection, state, "session-1", tools, save=save_kept)
    delete_run(connection, "run-T104")
    assert versions(connection) == []


def test_keep_needs_a_transaction_and_a_run(connection: AgentConnection, state: RunState) -> None:
    with pytest.raises(TransactionError, match="with connection"):
        keep(connection, state)
    with pytest.raises(sqlite3.IntegrityError), connection:
        keep(connection, replace(state, run_id="run-T999"))
    assert len(read_events(connection, "run-T104")) == 1


def test_an_archive_that_was_never_made_is_named(
    connection: AgentConnection, state: RunState
) -> None:
    connection.execute("DROP TABLE run_checkpoints")
    with pytest.raises(Exception, match="no such table: run_checkpoints"):
        save_kept(connection, state, context=state.context, **STEP)
    assert load_state(connection, "run-T104") == state
