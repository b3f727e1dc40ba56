"""A checkpoint and its archive are written together, once, and never over another one."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_parts import rows

from lesson_lib import agent
from lesson_lib.checkpoints import archive
from lesson_lib.checkpoints.archive import create_archive, keep, put, read_archive, save_kept
from lesson_lib.checkpoints.codec import decode, encode
from lesson_lib.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointSizeError,
    InvalidStateError,
    StaleVersionError,
    TransactionError,
)
from lesson_lib.json_text import to_json
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import AgentConnection, delete_run, load_state, read_events
from lesson_lib.tickets import Tools, find_ticket, read_tickets

STEP: dict[str, Any] = {"session": "session-1", "action": "talk", "next_action": "talk"}


@pytest.fixture
def state(connection: AgentConnection) -> RunState:
    create_archive(connection)
    create_archive(connection)
    return agent.start(connection, find_ticket(read_tickets(), "T104"), "session-1")


def versions(connection: AgentConnection) -> list[int]:
    return [kept.version for kept in read_archive(connection, "run-T104")]


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
    ours = replace(old, context_json=to_json(dict(old.context) | {"draft": "ours"}))
    before = rows(database)
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104"):
        save_kept(connection, ours, context=ours.context, **STEP)
    assert rows(database) == before


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
