"""A checkpoint and its archive are written together, once, and never over another one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlite_bytes import parts
from store_parts import rows

from lesson_lib.checkpoints import archive
from lesson_lib.checkpoints.archive import Keep, agree, create_archive, put, read_archive, read_kept
from lesson_lib.checkpoints.codec import StoredCheckpoint, decode, encode
from lesson_lib.checkpoints.history import Window, create_history, read_history
from lesson_lib.checkpoints.redaction import Redact, redact
from lesson_lib.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointSizeError,
    InvalidStateError,
    LeaseLostError,
    StaleVersionError,
    StorageError,
)
from lesson_lib.json_text import to_json
from lesson_lib.labs.checkpoint_format import goldens
from lesson_lib.model import RunState, Step
from lesson_lib.riders.claims import Claimed, claim_run, create_claims, release
from lesson_lib.sqlite import (
    AgentConnection,
    SQLiteStore,
    connect,
    delete_run,
    load_state,
    save_checkpoint,
    write_checkpoint,
)
from lesson_lib.tickets import Tools, ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

TALK = Step("talk", {}, "talk")
KEEP = Keep(TICKET_SCHEMA)


@pytest.fixture
def store(connection: AgentConnection) -> SQLiteStore:
    create_archive(connection)
    create_archive(connection)
    return SQLiteStore(connection, "session-1", (KEEP,))


@pytest.fixture
def state(store: SQLiteStore) -> RunState:
    return ticket_agent.start(store, "run-T104")


def versions(connection: AgentConnection) -> list[int]:
    return [stored.version for stored in read_archive(connection, "run-T104")]


def states(connection: AgentConnection) -> list[RunState | None]:
    return [kept.state for kept in read_kept(connection, "run-T104", TICKET_SCHEMA)]


def encoded(state: RunState, compression: str | None = None) -> StoredCheckpoint:
    return encode(state, TICKET_SCHEMA, compression)


def other_than(state: RunState) -> RunState:
    return replace(state, context_json=to_json(dict(state.context) | {"draft": "another"}))


def test_each_save_keeps_the_new_state_and_the_start_is_version_0(
    store: SQLiteStore, state: RunState, tools: Tools
) -> None:
    end = ticket_agent.run_to_end(store, state, tools)
    assert versions(store.connection) == [4, 3, 2, 1, 0]
    newest, *_, first = states(store.connection)
    assert newest == end == load_state(store.connection, "run-T104")
    assert first == state
    (third,) = read_kept(store.connection, "run-T104", TICKET_SCHEMA, version=3)
    assert third.state is not None
    assert (third.state.next_action, third.schema_version) == ("finish", 4)


@pytest.mark.parametrize(
    ("found", "error"),
    [({"draft": "x" * 1_000_000}, CheckpointSizeError), ({"mood": "calm"}, InvalidStateError)],
)
def test_what_is_refused_changes_no_row_of_any_table(
    store: SQLiteStore,
    database: Path,
    state: RunState,
    found: dict[str, Any],
    error: type[Exception],
) -> None:
    before = rows(database)
    with pytest.raises(error):
        store.save_checkpoint(state, replace(TALK, found=found))
    assert rows(database) == before
    new = RunState.begin("run-T1", "T1", "talk", state.context | found)
    with pytest.raises(error):
        store.start_run(new)
    assert rows(database) == before


def test_a_failure_while_it_keeps_changes_no_row_of_any_table(
    store: SQLiteStore, database: Path, state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(database)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(archive, "put", fail)
    with pytest.raises(OSError, match="gone"):
        store.save_checkpoint(state, TALK)
    assert rows(database) == before


def test_a_stale_writer_changes_nothing(
    store: SQLiteStore, database: Path, state: RunState
) -> None:
    store.save_checkpoint(state, TALK)
    before = rows(database)
    for step in (TALK, replace(TALK, found={"draft": "another"})):
        with pytest.raises(StaleVersionError):
            store.save_checkpoint(state, step)
    assert rows(database) == before


def test_a_file_that_was_replaced_under_a_session_is_noticed(
    store: SQLiteStore, database: Path, state: RunState
) -> None:
    old = store.save_checkpoint(state, replace(TALK, found={"draft": "old"}))
    before = rows(database)
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104 is stored with"):
        store.save_checkpoint(other_than(old), TALK)
    store.connection.execute("UPDATE agent_runs SET context_json = '[]'")
    with pytest.raises(InvalidStateError, match="the context of run-T104 is not a JSON object"):
        store.save_checkpoint(old, TALK)
    assert rows(database)["run_checkpoints"] == before["run_checkpoints"]


@pytest.mark.parametrize("beside_the_own_one", [False, True])
def test_a_rival_in_the_archive_is_noticed(
    store: SQLiteStore, database: Path, state: RunState, beside_the_own_one: bool
) -> None:
    put(store.connection, encoded(other_than(state.after(TALK))))
    if beside_the_own_one:
        put(store.connection, encoded(state.after(TALK)))
    before = rows(database)
    with pytest.raises(CheckpointConflictError, match="version 1 of run-T104 is kept with"):
        store.save_checkpoint(state, TALK)
    assert rows(database) == before


@pytest.mark.parametrize("name", ["v1-none", "v2-zstd", "v3-zstd"])
def test_a_row_of_an_older_schema_is_followed_as_it_was_stepped_up(
    connection: AgentConnection, name: str
) -> None:
    stepped_up = goldens.lay_down(connection, goldens.read_goldens()[name])
    loaded = load_state(connection, stepped_up.run_id)
    assert loaded.context != stepped_up.context
    (kept,) = read_kept(connection, stepped_up.run_id, TICKET_SCHEMA)
    assert agree(loaded, kept, TICKET_SCHEMA)
    assert not agree(replace(loaded, next_action="another"), kept, TICKET_SCHEMA)
    store = SQLiteStore(connection, "session-2", (KEEP,))
    with pytest.raises(CheckpointConflictError):
        store.save_checkpoint(other_than(stepped_up), TALK)
    assert store.save_checkpoint(stepped_up, TALK).version == stepped_up.version + 1


def test_a_conflict_is_found_before_anything_is_written(
    connection: AgentConnection, state: RunState
) -> None:
    with connection:
        put(connection, encoded(other_than(state.after(TALK))))
        with pytest.raises(CheckpointConflictError):
            write_checkpoint(connection, state, TALK, session="session-1", riders=(KEEP,))
    assert load_state(connection, "run-T104") == state


@pytest.mark.parametrize("place", range(3))
def test_a_row_whose_own_bytes_changed_is_noticed_by_its_checksum(
    store: SQLiteStore, database: Path, state: RunState, place: int
) -> None:
    new = store.save_checkpoint(state, TALK)
    store.connection.close()
    found = {p.part: p for p in parts(database, "run_checkpoints") if p.rowid == 2}
    damaged = found[("schema_version", "compression", "body")[place]]
    with database.open("r+b") as file:
        file.seek(damaged.start)
        file.write(b"\xff")  # in a text no UTF-8 any more
    with closing(connect(database)) as reopened:
        newest, first = read_kept(reopened, "run-T104", TICKET_SCHEMA)
        assert (newest.version, newest.state, newest.schema_version) == (1, None, 0)
        assert "checksum differs" in newest.problem
        assert first.state == state
        # Whoever has it as it was can put it there again.
        put(reopened, encoded(new))
        assert states(reopened) == [new, state]


def test_damage_that_sqlite_itself_reports_is_said(
    store: SQLiteStore, database: Path, state: RunState
) -> None:
    store.save_checkpoint(state, TALK)
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    store.connection.close()
    page = next(p for p in parts(database, "run_checkpoints") if p.rowid == 2).start // 4096
    with database.open("r+b") as file:
        file.seek(page * 4096)
        file.write(b"\0" * 8)
    with closing(connect(database)) as reopened:
        for ask in (states, versions):
            with pytest.raises(StorageError, match="is damaged: restore it from a backup"):
                ask(reopened)


@pytest.mark.parametrize(
    "sql",
    [
        "REPLACE INTO agent_runs SELECT * FROM agent_runs",
        """INSERT OR REPLACE INTO agent_runs (rowid, run_id, ticket_id, status, next_action,
        context_json, version) VALUES (1, 'run-new', 'T1', 'running', 'talk', '{}', 0)""",
    ],
)
def test_a_run_is_not_replaced_with_all_that_belongs_to_it(
    store: SQLiteStore, database: Path, state: RunState, sql: str
) -> None:
    store.save_checkpoint(state, TALK)
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match="stored already"):
        store.connection.execute(sql)
    assert rows(database) == before


def test_the_same_content_is_no_rival_whatever_its_compression(
    store: SQLiteStore, state: RunState
) -> None:
    new = state.after(TALK)
    put(store.connection, encoded(new, "gzip"))
    assert store.save_checkpoint(state, TALK) == new
    assert states(store.connection) == [new, new, state]


def test_a_row_that_is_spaced_otherwise_agrees(
    connection: AgentConnection, state: RunState
) -> None:
    spaced = replace(state, context_json=state.context_json.replace(": ", ":  "))
    (kept,) = read_kept(connection, "run-T104", TICKET_SCHEMA)
    assert spaced != state
    assert agree(spaced, kept, TICKET_SCHEMA)
    assert not agree(other_than(state), kept, TICKET_SCHEMA)


def test_a_damaged_row_of_the_same_content_gets_its_bytes_again(
    store: SQLiteStore, state: RunState
) -> None:
    new = state.after(TALK)
    put(store.connection, replace(encoded(new), body=b"damaged"))
    with pytest.raises(CheckpointError):
        decode(read_archive(store.connection, "run-T104")[0], TICKET_SCHEMA)
    store.save_checkpoint(state, TALK)
    assert states(store.connection) == [new, state]


def test_a_damaged_row_of_other_content_contradicts_nobody(
    store: SQLiteStore, state: RunState
) -> None:
    other = other_than(state.after(TALK))
    put(store.connection, replace(encoded(other), body=b"damaged"))
    new = store.save_checkpoint(state, TALK)
    assert versions(store.connection) == [1, 1, 0]
    assert set(states(store.connection)) == {None, new, state}


def test_the_archive_goes_with_its_run(store: SQLiteStore, state: RunState, tools: Tools) -> None:
    ticket_agent.run_to_end(store, state, tools)
    delete_run(store.connection, "run-T104")
    assert versions(store.connection) == []


def test_an_archive_that_was_never_made_is_named(store: SQLiteStore, state: RunState) -> None:
    store.connection.execute("DROP TABLE run_checkpoints")
    with pytest.raises(StorageError, match="no such table: run_checkpoints"):
        store.save_checkpoint(state, TALK)
    assert load_state(store.connection, "run-T104") == state


def test_a_run_of_another_kind_of_save_is_kept_from_then_on(
    connection: AgentConnection,
) -> None:
    create_archive(connection)
    state = ticket_agent.start(SQLiteStore(connection, "session-1"), "run-T104")
    state = save_checkpoint(connection, state, TALK, session="session-1")
    new = save_checkpoint(connection, state, TALK, session="session-1", riders=(KEEP,))
    assert states(connection) == [new]


# Riders together


def test_a_redacted_windowed_claimed_and_kept_save_is_one_call_and_all_or_nothing(
    connection: AgentConnection, database: Path, state: RunState
) -> None:
    create_claims(connection)
    claim = claim_run(connection, "run-T104", worker="w1", lease=timedelta(minutes=1))
    assert claim is not None
    create_history(connection)
    store = SQLiteStore(connection, "w1", (Redact(), Window(1), Claimed(claim), KEEP))
    said = [{"role": "person", "text": f"{word} ada@example.com"} for word in ("ask", "tell")]
    state = store.save_checkpoint(state, replace(TALK, appended={"conversation": said}))
    clean = redact(said)
    assert clean[0]["text"] == "ask [e-mail address removed]"
    assert state.context["conversation"][1:] == clean[1:]
    assert read_history(connection, "run-T104") == clean
    assert states(connection)[0] == state == load_state(connection, "run-T104")
    release(connection, claim)
    before = rows(database)
    with pytest.raises(LeaseLostError):
        store.save_checkpoint(state, TALK)
    assert rows(database) == before


def test_a_checkpoint_is_encoded_once_and_no_row_of_the_archive_is_decoded(
    connection: AgentConnection, state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_claims(connection)
    claim = claim_run(connection, "run-T104", worker="w1", lease=timedelta(minutes=1))
    assert claim is not None
    store = SQLiteStore(connection, "w1", (Redact(), Claimed(claim), Keep(TICKET_SCHEMA)))
    calls: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def count(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return function(*arguments, **options)

        return count

    for name in ("dumps", "loads"):
        monkeypatch.setattr(json, name, counted(name, getattr(json, name)))
    monkeypatch.setattr(archive, "decode", counted("decode", decode))
    store.save_checkpoint(state, TALK)
    # dumps: the new context, redacted, the rest of the body, the detail of the event.
    # loads: the old context; the new one where it is checked (twice), redacted, encoded.
    assert {name: calls.count(name) for name in set(calls)} == {"dumps": 4, "loads": 5}
