"""The buffer: nothing in it is taken for stored, and what it reports is what a death takes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_parts import CAN_FORK, processes
from store_parts import new_database, rows

from lesson_lib import agent, crash
from lesson_lib.checkpoints import codec
from lesson_lib.checkpoints.archive import create_archive, read_archive, save_kept
from lesson_lib.checkpoints.codec import decode
from lesson_lib.errors import (
    CheckpointConflictError,
    CheckpointSizeError,
    ChildError,
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    RunCompletedError,
    SimulatedCrash,
    StaleVersionError,
    StorageError,
    ToolResultError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.recovery import outage
from lesson_lib.recovery.buffer import Buffer
from lesson_lib.recovery.outage import Outage, Watched, kill_at, names_on_disk
from lesson_lib.recovery.recover import recover
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    execute_once,
    load_state,
    read_events,
)
from lesson_lib.stores.sqlite.connection import AgentCursor
from lesson_lib.tickets import Ticket, Tools, find_ticket, read_runbooks, read_tickets

RUN = "run-T104"
KEYS = [f"{RUN}:lookup_runbook", f"{RUN}:draft_reply"]


@pytest.fixture
def connection(database: Path) -> Iterator[AgentConnection]:
    """Open the database as a buffer wants it: no call waits for a lock."""
    with closing(connect(database, timeout=0)) as opened:
        create_archive(opened)
        yield opened


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the lock that writers need, from a second connection: an `Outage` that costs nothing."""
    with closing(sqlite3.connect(database, autocommit=True)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield


def ticket() -> Ticket:
    return find_ticket(read_tickets(), "T104")


def started(connection: AgentConnection) -> RunState:
    return agent.start(connection, ticket(), "session-1")


def at_end(connection: AgentConnection, tools: Tools, buffer: Buffer, state: RunState) -> RunState:
    return agent.run_to_end(
        connection, state, "session-1", tools, save=buffer.save, execute=buffer.execute
    )


def save(
    buffer: Buffer, connection: AgentConnection, state: RunState, **changes: JSONValue
) -> RunState:
    return buffer.save(
        connection,
        state,
        session="session-1",
        action="step",
        next_action="step",
        context=state.context | changes,
    )


def execute(buffer: Buffer, connection: AgentConnection, key: str, **more: Any) -> Any:
    about: dict[str, Any] = {"run_id": RUN, "session": "session-1", "tool_name": "tool"}
    about |= {"function": key.upper, "tool_input": {}} | more
    return buffer.execute(connection, about.pop("function"), key=key, **about)


def names(buffer: Buffer) -> list[str]:
    return [waiting.name for waiting in buffer.not_durable]


def forms(buffer: Buffer) -> dict[str, str]:
    return {waiting.name: waiting.form for waiting in buffer.not_durable}


def kinds(connection: AgentConnection) -> list[str]:
    return [event.event_type for event in read_events(connection, RUN)]


def all_rows(connection: AgentConnection) -> Any:
    found = rows(connection.path)
    found["agent_events"] = [row[:-1] for row in found["agent_events"]]
    return found


def test_with_the_store_there_all_is_as_without_a_buffer(
    tmp_path: Path, connection: AgentConnection, tools: Tools
) -> None:
    end = at_end(connection, tools, buffer := Buffer(), started(connection))
    assert (end.status, buffer.not_durable) == ("completed", ())
    (other := tmp_path / "other").mkdir()
    with closing(connect(new_database(other))) as plain:
        create_archive(plain)
        others = Tools(tools.runbooks, Ledger(other / "ledger.txt"))
        agent.run_to_end(plain, started(plain), "session-1", others, save=save_kept)
        assert all_rows(plain) == all_rows(connection)


def test_a_run_goes_on_without_its_store_and_ends_as_with_it(
    tmp_path: Path, connection: AgentConnection, tools: Tools
) -> None:
    buffer, begin = Buffer(), started(connection)
    before = all_rows(connection)
    with locked(connection.path):
        end = at_end(connection, tools, buffer, begin)
        with pytest.raises(StorageError, match="locked"):
            buffer.flush(connection)
        assert all_rows(connection) == before
    assert names(buffer) == [
        *("version 1", KEYS[0], "version 2", KEYS[1], "version 3", "version 4"),
    ]
    assert {waiting.run_id for waiting in buffer.not_durable} == {RUN}
    buffer.flush(connection)
    assert buffer.not_durable == ()
    assert load_state(connection, RUN) == end
    assert tools.ledger.lines() == KEYS
    (other := tmp_path / "other").mkdir()
    with closing(connect(new_database(other))) as plain:
        create_archive(plain)
        others = Tools(tools.runbooks, Ledger(other / "ledger.txt"))
        agent.run_to_end(plain, started(plain), "session-1", others, save=save_kept)
        assert all_rows(plain) == all_rows(connection)


def test_what_waits_goes_in_before_what_comes_next(
    connection: AgentConnection, tools: Tools
) -> None:
    buffer, state = Buffer(), started(connection)
    with locked(connection.path):
        for _ in range(2):
            state = agent.run_next_action(
                connection, state, "s", tools, save=buffer.save, execute=buffer.execute
            )
    assert names(buffer) == ["version 1", KEYS[0], "version 2"]
    seen = []

    def passing(point: str) -> None:
        seen.append((point, names(buffer), load_state(connection, RUN).version))

    agent.run_next_action(
        connection, state, "s", tools, passing=passing, save=buffer.save, execute=buffer.execute
    )
    assert seen[1] == ("draft_reply:tool_ran", [], 2)
    assert names_on_disk(connection.path, RUN) == [
        *("version 1", KEYS[0], "version 2", KEYS[1], "version 3"),
    ]


def test_one_outage_follows_another(connection: AgentConnection) -> None:
    buffer, state = Buffer(), started(connection)
    for _ in range(2):
        with locked(connection.path):
            for _ in range(2):
                state = save(buffer, connection, state)
        state = save(buffer, connection, state)
        assert buffer.not_durable == ()
        assert load_state(connection, RUN) == state
    assert state.version == 6


def test_a_flushed_buffer_is_recovered_from(connection: AgentConnection, tools: Tools) -> None:
    buffer, state = Buffer(3), started(connection)
    with locked(connection.path):
        end = at_end(connection, tools, buffer, state)
    buffer.flush(connection)
    assert recover(connection, RUN, "session-2").step == "newest checkpoint"
    connection.execute("UPDATE run_checkpoints SET body = x'00' WHERE version = 4")
    connection.execute("UPDATE agent_runs SET context_json = '{}'")
    report = recover(connection, RUN, "session-2")
    assert report.state is not None
    # Versions 1 to 3 were dropped: only the first one is left to go on from.
    assert report.chosen == 0
    again = agent.run_to_end(connection, report.state, "session-2", tools, save=save_kept)
    assert again.context == end.context
    assert tools.ledger.lines() == KEYS  # the results were kept


@pytest.mark.parametrize("limit", range(2, 9))
def test_the_bound_holds_and_the_newest_stay_whole(
    connection: AgentConnection, tools: Tools, limit: int
) -> None:
    buffer, state = Buffer(limit), started(connection)

    def passing(point: str) -> None:
        whole = [waiting for waiting in buffer.not_durable if waiting.form == "whole"]
        assert len(whole) == min(limit, len(buffer.not_durable))
        for kind in ("checkpoint_saved", "tool_executed"):
            newest = [w for w in buffer.not_durable if w.event_type == kind][-1:]
            assert [w.form for w in newest] == ["whole"] * len(newest)

    with locked(connection.path):
        end = agent.run_to_end(
            connection,
            state,
            "s",
            tools,
            passing=passing,
            save=buffer.save,
            execute=buffer.execute,
        )
    waited = buffer.not_durable
    dropped = [waiting.name for waiting in waited if waiting.form == "summary"]
    order = ["version 1", "version 2", "version 3", *KEYS]
    assert sorted(dropped) == sorted(order[: max(0, 6 - limit)])
    buffer.flush(connection)
    assert load_state(connection, RUN) == end
    assert names_on_disk(connection.path, RUN) == [waiting.name for waiting in waited]
    kept = [f"version {decode(stored).version}" for stored in read_archive(connection, RUN)]
    assert kept == [f"version {v}" for v in range(4, -1, -1) if f"version {v}" not in dropped]
    saved = connection.execute("SELECT idempotency_key FROM tool_effects").fetchall()
    assert {key for (key,) in saved} == set(KEYS) - set(dropped)
    events = read_events(connection, RUN)
    gone = [from_json(e.detail) for e in events if e.event_type == "payload_not_kept"]
    assert sorted(d.get("key", f"version {d.get('version')}") for d in gone) == sorted(dropped)


def test_a_summary_tells_what_it_was(connection: AgentConnection, tools: Tools) -> None:
    buffer, state = Buffer(2), started(connection)
    with locked(connection.path):
        at_end(connection, tools, buffer, state)
        whole = Buffer(9)
        at_end(connection, tools, whole, load_state(connection, RUN))
    for short, full in zip(buffer.not_durable, whole.not_durable, strict=True):
        assert short in (full, replace(full, payload=None))
        assert len(repr(short)) < 400
    assert [w.next_action for w in buffer.not_durable if w.event_type == "checkpoint_saved"] == [
        *("lookup_runbook", "draft_reply", "finish", None),
    ]


def test_a_buffer_without_room_is_refused() -> None:
    for limit in (1, 0, -1):
        with pytest.raises(InvalidStateError, match="2 is the least"):
            Buffer(limit)


def test_each_call_meets_the_closed_store_once(connection: AgentConnection) -> None:
    buffer, state, tries = Buffer(), started(connection), []
    connection.set_trace_callback(lambda sql: tries.append(sql) if "BEGIN" in sql else None)
    with locked(connection.path):
        execute(Buffer(), connection, "alone")
        assert tries == ["BEGIN IMMEDIATE"]
        tries.clear()
        for number in range(3):
            state = save(buffer, connection, state)
            execute(buffer, connection, f"key-{number}")
            assert tries == ["BEGIN IMMEDIATE"] * 2
            tries.clear()


def test_a_full_disk_is_an_outage_too(connection: AgentConnection) -> None:
    buffer, state = Buffer(20), started(connection)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    for number in range(10):
        noise = "".join(chr(33 + (n * n * 7 + number) % 90) for n in range(3_000))
        state = save(buffer, connection, state, draft=noise)
        execute(buffer, connection, f"key-{number}", function=lambda noise=noise: noise)
    assert buffer.not_durable
    with pytest.raises(StorageError, match="disk is full"):
        buffer.flush(connection)
    waiting, at = names(buffer), load_state(connection, RUN).version
    assert at == sum(kind == "checkpoint_saved" for kind in kinds(connection)) < 10
    on_disk = names_on_disk(connection.path, RUN)
    everything = [n for i in range(10) for n in (f"version {i + 1}", f"key-{i}")]
    assert on_disk + waiting == everything
    connection.execute("PRAGMA max_page_count = 10000").fetchall()
    buffer.flush(connection)
    assert names_on_disk(connection.path, RUN) == everything
    assert load_state(connection, RUN) == state


def test_a_worker_that_lost_its_run_forces_nothing_in(
    connection: AgentConnection, tools: Tools
) -> None:
    buffer, state = Buffer(), started(connection)
    with locked(connection.path):
        state = save(buffer, connection, state)
        execute(buffer, connection, "key")
        state = save(buffer, connection, state)
    other = agent.run_next_action(
        connection, load_state(connection, RUN), "session-2", tools, save=save_kept
    )
    before, waiting = all_rows(connection), buffer.not_durable
    calls: list[str] = []
    for _ in range(2):
        with pytest.raises(StaleVersionError, match="load the state again"):
            buffer.flush(connection)
        with pytest.raises(StaleVersionError):
            save(buffer, connection, state)
        with pytest.raises(StaleVersionError):
            execute(buffer, connection, "more", function=lambda: calls.append("called"))
    assert calls == []
    assert (all_rows(connection), buffer.not_durable) == (before, waiting)
    assert load_state(connection, RUN) == other


def test_a_conflict_after_a_good_beginning_takes_the_beginning_back(
    connection: AgentConnection,
) -> None:
    buffer, state = Buffer(), started(connection)
    with locked(connection.path):
        execute(buffer, connection, "first")
        state = save(buffer, connection, state)
        execute(buffer, connection, "second")
    about: dict[str, Any] = {"run_id": RUN, "session": "s2", "tool_name": "tool"}
    execute_once(connection, lambda: "other", **about, key="second", tool_input={})
    before = all_rows(connection)
    with pytest.raises(IdempotencyConflictError, match="second got a result from another"):
        buffer.flush(connection)
    assert all_rows(connection) == before
    assert names(buffer) == ["first", "version 1", "second"]


def test_a_file_that_was_replaced_is_a_conflict(connection: AgentConnection) -> None:
    buffer = Buffer()
    state = save(buffer, connection, started(connection))
    with locked(connection.path):
        save(buffer, connection, state)
    # A run of the same version and another content, as after a backup was restored.
    rival = codec.encode(replace(state, context_json=to_json(state.context | {"draft": "other"})))
    connection.execute(
        "UPDATE run_checkpoints SET body = ?, sha256 = ? WHERE version = 1",
        (rival.body, rival.sha256),
    )
    before = all_rows(connection)
    with pytest.raises(CheckpointConflictError, match="another content"):
        buffer.flush(connection)
    assert (all_rows(connection), names(buffer)) == (before, ["version 2"])


def test_what_the_store_will_never_take_is_refused_at_once(connection: AgentConnection) -> None:
    buffer, state = Buffer(), started(connection)
    with locked(connection.path):
        wrong: list[tuple[type[Exception], dict[str, Any]]] = [
            (JSONValueError, {"draft": float("nan")}),
            (InvalidStateError, {"no_such_field": 1}),
            (CheckpointSizeError, {"draft": "x" * codec.LARGEST}),
        ]
        for error, change in wrong:
            with pytest.raises(error):
                save(buffer, connection, state, **change)
        with pytest.raises(JSONValueError):
            execute(buffer, connection, "key", tool_input={"a": float("inf")})
        assert buffer.not_durable == ()
        done = save(buffer, connection, state)
        with pytest.raises(StaleVersionError, match="returned last"):
            save(buffer, connection, state)
        end = buffer.save(
            connection, done, session="s", action="a", next_action=None, context=done.context
        )
        with pytest.raises(RunCompletedError):
            save(buffer, connection, end)
        assert names(buffer) == ["version 1", "version 2"]
    buffer.flush(connection)
    assert load_state(connection, RUN) == end


def test_a_mistake_in_a_program_is_not_taken_for_an_outage(database: Path) -> None:
    with closing(connect(database)) as connection:
        buffer, state = Buffer(), started(connection)
        with pytest.raises(StorageError, match="no such table: run_checkpoints"):
            save(buffer, connection, state)
        with connection, pytest.raises(TransactionError):
            save(buffer, connection, state)
        with pytest.raises(ZeroDivisionError):
            execute(buffer, connection, "key", function=lambda: 1 // 0)
        assert buffer.not_durable == ()
        connection.execute("PRAGMA busy_timeout = 0").fetchall()
        with locked(database):
            state = save(buffer, connection, state)
        for _ in range(2):
            with pytest.raises(StorageError, match="no such table: run_checkpoints"):
                save(buffer, connection, state)
        assert names(buffer) == ["version 1"]
        create_archive(connection)
        save(buffer, connection, state)
        assert load_state(connection, RUN).version == 2


def test_a_tool_that_fails_leaves_nothing(connection: AgentConnection) -> None:
    buffer, state = Buffer(), started(connection)
    with locked(connection.path):
        with pytest.raises(ZeroDivisionError):
            execute(buffer, connection, "key", function=lambda: 1 // 0)
        with pytest.raises(ToolResultError):
            execute(buffer, connection, "key", function=lambda: {1: 2})
        save(buffer, connection, state)
        with pytest.raises(ToolResultError):
            execute(buffer, connection, "key", function=lambda: {1: 2})
    assert names(buffer) == ["version 1"]


def test_a_tool_that_meets_its_own_outage_is_called_once(
    tmp_path: Path, connection: AgentConnection
) -> None:
    started(connection)
    (tmp_path / "other").mkdir()
    calls: list[str] = []
    with closing(connect(new_database(tmp_path / "other"), timeout=0)) as other:

        def tool() -> None:
            calls.append("called")
            with other:
                pass

        with locked(other.path), pytest.raises(StorageError, match="locked"):
            execute(buffer := Buffer(), connection, "key", function=tool)
    assert (calls, buffer.not_durable) == (["called"], ())


def test_a_result_is_remembered_though_nobody_can_read_after_the_call(
    connection: AgentConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, calls = Buffer(), list[str]()
    started(connection)
    plain = AgentCursor.execute

    def away(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR"
        raise StorageError("the disk is away") from error

    def tool() -> int:
        calls.append("called")
        monkeypatch.setattr(AgentCursor, "execute", away)
        return 1

    for _ in range(2):
        assert execute(buffer, connection, "key", function=tool).value == 1
    assert (calls, names(buffer)) == (["called"], ["key"])
    monkeypatch.setattr(AgentCursor, "execute", plain)
    buffer.flush(connection)
    assert names_on_disk(connection.path, RUN) == ["key"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("session", ""), ("session", "\ud800"), ("tool_name", ""), ("run_id", "")),
        ("run_id", "run-T999"),
    ],
)
def test_a_name_that_no_store_takes_is_refused_before_the_call(
    connection: AgentConnection, name: str, value: str
) -> None:
    buffer, state, calls = Buffer(), started(connection), list[str]()
    with locked(connection.path):
        for _ in range(2):
            with pytest.raises((InvalidStateError, UnknownRunError)):
                execute(buffer, connection, "k", function=lambda: calls.append(""), **{name: value})
        about = {"session": "s", "action": "a", "next_action": "b", "context": state.context}
        if name == "session":
            with pytest.raises(InvalidStateError):
                buffer.save(connection, state, **about | {name: value})  # type: ignore[arg-type]
            with pytest.raises(InvalidStateError):
                buffer.save(connection, state, **about | {"action": value})  # type: ignore[arg-type]
        if value == "run-T999":
            with pytest.raises(UnknownRunError):
                save(buffer, connection, replace(state, run_id=value))
    assert (calls, buffer.not_durable) == ([], ())


def test_a_buffer_is_one_runs(connection: AgentConnection) -> None:
    buffer, state = Buffer(), started(connection)
    other = agent.start(connection, find_ticket(read_tickets(), "T105"), "session-1")
    save(buffer, connection, state)
    for _ in range(2):
        with pytest.raises(InvalidStateError, match="run-T105 needs one of its own"):
            save(buffer, connection, other)
        with pytest.raises(InvalidStateError, match="run-T105 needs one of its own"):
            execute(buffer, connection, "key", run_id="run-T105")


def test_a_key_is_one_tools_and_one_runs(connection: AgentConnection) -> None:
    started(connection)
    agent.start(connection, find_ticket(read_tickets(), "T105"), "session-1")
    execute(Buffer(), connection, "saved", run_id="run-T105")
    buffer = Buffer()
    with locked(connection.path):
        execute(buffer, connection, "key")
        with pytest.raises(IdempotencyConflictError, match="another input or tool"):
            execute(buffer, connection, "key", tool_name="other")
        with pytest.raises(IdempotencyConflictError, match="one of run-T105"):
            execute(buffer, connection, "saved")
    assert names(buffer) == ["key"]


@pytest.mark.parametrize("limit", [2, 8])
def test_interrupted_after_its_commit_a_flush_is_known_later(
    connection: AgentConnection, tools: Tools, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    buffer, state = Buffer(limit), started(connection)
    with locked(connection.path):
        for _ in range(2):
            state = agent.run_next_action(
                connection, state, "s", tools, save=buffer.save, execute=buffer.execute
            )
    plain = AgentConnection.__exit__

    def interrupted(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AgentConnection, "__exit__", interrupted)
        buffer.flush(connection)
    assert names(buffer) == ["version 1", KEYS[0], "version 2"]
    end = at_end(connection, tools, buffer, state)
    assert (buffer.not_durable, load_state(connection, RUN)) == ((), end)
    assert kinds(connection).count("checkpoint_saved") == 4


def test_a_result_that_waits_answers_the_repeat(connection: AgentConnection) -> None:
    buffer, _ = Buffer(), started(connection)
    calls: list[int] = []

    def tool() -> int:
        calls.append(1)
        return len(calls)

    with locked(connection.path):
        first = execute(buffer, connection, "key", function=tool)
        again = execute(buffer, connection, "key", function=tool)
        assert (first.value, first.reused, again.value, again.reused) == (1, False, 1, True)
        with pytest.raises(IdempotencyConflictError, match="another input"):
            execute(buffer, connection, "key", function=tool, tool_input={"other": 1})
    assert execute(buffer, connection, "key", function=tool).reused
    assert (calls, names(buffer)) == ([1], [])
    assert kinds(connection) == ["run_started", "tool_executed", "tool_reused"]


def test_a_result_that_was_dropped_is_not_called_for_again(connection: AgentConnection) -> None:
    buffer, _ = Buffer(2), started(connection)
    with locked(connection.path):
        for key in ("a", "b", "c"):
            execute(buffer, connection, key)
        assert forms(buffer) == {"a": "summary", "b": "whole", "c": "whole"}
        with pytest.raises(StorageError, match="was called, and its result was dropped"):
            execute(buffer, connection, "a")
        assert execute(buffer, connection, "b").value == "B"
    buffer.flush(connection)
    assert kinds(connection) == [
        *("run_started", "tool_executed", "payload_not_kept", "tool_executed", "tool_executed"),
    ]
    # What was dropped is gone for good: this is the price.
    assert not execute(buffer, connection, "a").reused
    assert execute(buffer, connection, "b").reused


def test_a_saved_result_is_found_while_nothing_can_be_written(connection: AgentConnection) -> None:
    buffer, state = Buffer(), started(connection)
    execute(buffer, connection, "key")
    calls: list[str] = []
    for prepared in (False, True):  # the buffer is empty, or something waits already
        with locked(connection.path):
            if prepared:
                state = save(buffer, connection, state)
            found = execute(buffer, connection, "key", function=lambda: calls.append("called"))
            assert (found.value, found.reused) == ("KEY", True)
        assert names(buffer) == ["version 1"] * prepared + ["key"]
        assert buffer.not_durable[-1].event_type == "tool_reused"
        with locked(connection.path), pytest.raises(IdempotencyConflictError):
            Buffer().execute(
                connection,
                lambda: None,
                run_id=RUN,
                session="s",
                key="key",
                tool_name="tool",
                tool_input={"other": 1},
            )
        buffer.flush(connection)
    assert calls == []
    assert kinds(connection) == [
        *("run_started", "tool_executed", "tool_reused", "checkpoint_saved", "tool_reused"),
    ]


def test_where_nobody_can_read_no_tool_is_called(tmp_path: Path, tools: Tools) -> None:
    database = new_database(tmp_path)
    with closing(connect(database, timeout=0)) as connection:
        create_archive(connection)
        buffer, state = Buffer(), started(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    calls: list[str] = []
    alone = sqlite3.connect(database, autocommit=True)
    late = sqlite3.connect(database, timeout=0, autocommit=True, factory=AgentConnection)
    late.path, late.timeout, late.row_factory = database, 0, sqlite3.Row
    with closing(alone), closing(late):
        alone.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()  # keeps readers out, too
        alone.execute("UPDATE agent_runs SET status = status")
        state = save(buffer, late, state)
        with pytest.raises(StorageError, match="locked"):
            execute(buffer, late, "key", function=lambda: calls.append("called"))
    assert (calls, names(buffer), state.version) == ([], ["version 1"], 1)


def test_a_lock_folder_that_cannot_be_made_stops_no_run(
    connection: AgentConnection, tools: Tools
) -> None:
    connection.path.with_name("agent.db-locks").write_text("in the way", "utf-8")
    buffer = Buffer()
    end = at_end(connection, tools, buffer, started(connection))
    assert (end.status, tools.ledger.lines()) == ("completed", KEYS)
    assert load_state(connection, RUN) == end
    assert names(buffer) == []


# Deaths. What the dead had been given and is not on disk is what they had reported.


@pytest.mark.parametrize("back", [None, "finish:before_checkpoint"])
def test_killed_at_any_point_the_report_and_the_loss_agree(
    tmp_path: Path, tools: Tools, back: str | None
) -> None:
    points = outage.points() if back else outage.points()[:-1]
    lost = []
    for point in points:
        folder = tmp_path / point.replace(":", "-")
        row = kill_at(folder, point, back=back, limit=3)
        assert row["reported"] == row["lost"], point
        lost.append(row["lost"])
        with closing(connect(folder / "agent.db")) as connection:
            after = Tools(tools.runbooks, Ledger(folder / "ledger.txt"))
            before = names_on_disk(connection.path, RUN)
            called = after.ledger.lines()
            state = agent.resume_or_start(connection, ticket(), "session-2")
            assert agent.run_to_end(connection, state, "session-2", after).status == "completed"
        # Called again is what ran and was not saved, and nothing else.
        again = [key for key in called if key not in before]
        assert [key for key in KEYS if after.ledger.count(key) == 2] == again
        assert len(after.ledger.lines()) == len(KEYS) + len(again)
    if back is None:
        assert lost[-1] == "lookup_runbook, version 2, draft_reply, version 3, version 4"
    else:
        assert lost[-1] == "nothing" != max(lost, key=len)


def test_a_point_that_is_never_reached_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="never came to flushed: it finished"):
        kill_at(tmp_path / "x", "flushed")


def session(database: Path, ledger: Path, report: Path, die_at: int | None) -> None:
    """Be a child: report before and after each SQL statement, and be killed at one of them.

    The store is away from the lookup of the runbook on, and comes back before the flush.
    """
    number, buffer = count(1), Watched(3)

    def point(label: str) -> None:
        reached = next(number)
        line = {"at": label, "not_durable": names(buffer), "given": buffer.given}
        with report.open("a", encoding="utf-8") as file:
            file.write(to_json(line) + "\n")
        if reached == die_at:
            crash.die("kill")

    def watched(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        point(f"before {sql.split()[0]}")
        found = plain(cursor, sql, parameters)
        point(f"after {sql.split()[0]}")
        return found

    tools = Tools(read_runbooks(), Ledger(ledger))
    with closing(connect(database, timeout=0)) as connection:
        state = started(connection)
        state = agent.run_next_action(connection, state, "s", tools, save=buffer.save)
        plain = AgentCursor.execute
        AgentCursor.execute = watched  # type: ignore[method-assign, assignment]
        with locked(database):
            state = at_end(connection, tools, buffer, state)
        buffer.flush(connection)
        point("flushed")


def live(folder: Path, die_at: int | None) -> tuple[Path, list[Any]]:
    """Let a child live in a folder; return its database and its reports."""
    folder.mkdir()
    database, report = new_database(folder), folder / "report"
    with closing(connect(database)) as connection:
        create_archive(connection)
    process = processes.Process(
        target=session, args=(database, folder / "ledger.txt", report, die_at)
    )
    process.start()
    process.join()
    assert (process.exitcode == 0) == (die_at is None)
    process.close()
    return database, [from_json(line) for line in report.read_text("utf-8").splitlines()]


@pytest.mark.skipif(not CAN_FORK, reason="spawning each child takes too long")
def test_killed_at_any_statement_the_report_and_the_loss_agree(tmp_path: Path) -> None:
    _, whole = live(tmp_path / "whole", None)
    with ThreadPoolExecutor(2) as threads:
        numbers = range(1, len(whole) + 1)
        ends = list(threads.map(lambda n: live(tmp_path / str(n), n), numbers))
    in_doubt, partly = 0, 0
    for database, reports in ends:
        last, on_disk = reports[-1], names_on_disk(database, RUN)
        lost = [name for name in last["given"] if name not in on_disk]
        if last["at"] == "after COMMIT" and last["not_durable"] and not lost:
            in_doubt += 1  # committed, and the process had no time to say so
            continue
        assert lost == last["not_durable"], last["at"]
        partly += bool(lost)
        assert on_disk == last["given"][: len(on_disk)]
        with closing(connect(database)) as connection:
            load_state(connection, RUN)  # no gap, nothing half
    assert in_doubt == 1
    assert partly > 20
    assert whole[-1]["not_durable"] == []


STEPS = st.lists(
    st.sampled_from(["save", "save", "call", "away", "back", "flush", "other", "die"]), max_size=25
)


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(steps=STEPS, limit=st.integers(2, 5))
def test_whatever_happens_the_report_is_the_loss(steps: list[str], limit: int) -> None:
    with (
        TemporaryDirectory() as folder,
        closing(connect(new_database(Path(folder)), timeout=0)) as connection,
    ):
        connection.execute("PRAGMA synchronous = OFF")
        create_archive(connection)
        story = Story(connection, limit)
        for step in [*steps, "die"]:
            getattr(story, step)()
        story.closing()


class Story:
    """What happens to a run and its store, and what must be true after each step."""

    def __init__(self, connection: AgentConnection, limit: int) -> None:
        self.connection, self.limit = connection, limit
        self.holder = sqlite3.connect(connection.path, autocommit=True)
        self.state = started(connection)
        self.keys = count(1)
        self.begin()

    def begin(self) -> None:
        """Begin a process life."""
        self.buffer = Watched(self.limit)
        self.is_lost = False
        self.before = names_on_disk(self.connection.path, RUN)

    def save(self) -> None:
        self.try_it(lambda: setattr(self, "state", save(self.buffer, self.connection, self.state)))

    def call(self) -> None:
        self.try_it(lambda: execute(self.buffer, self.connection, f"key-{next(self.keys)}"))

    def flush(self) -> None:
        def flush() -> None:
            if self.holder.in_transaction and self.buffer.not_durable:
                with pytest.raises(StorageError):
                    self.buffer.flush(self.connection)
            else:
                self.buffer.flush(self.connection)
                assert self.buffer.not_durable == ()

        self.try_it(flush)

    def try_it(self, step: Any) -> None:
        """Take a step; a worker that lost its run gets an error, and no other worker does."""
        try:
            step()
        except StaleVersionError:
            assert self.is_lost
        self.compare()

    def compare(self) -> None:
        on_disk = names_on_disk(self.connection.path, RUN)
        mine = self.buffer.given
        lost = [name for name in mine if name not in on_disk]
        # Another worker's versions have the names of ours.
        reported = [n for n in names(self.buffer) if not self.is_lost or n not in on_disk]
        assert lost == reported
        if not self.is_lost:
            assert on_disk == self.before + mine[: len(mine) - len(lost)]

    def away(self) -> None:
        if not self.holder.in_transaction:
            self.holder.execute("BEGIN EXCLUSIVE")

    def back(self) -> None:
        if self.holder.in_transaction:
            self.holder.execute("ROLLBACK")

    def other(self) -> None:
        """Let another worker go on with the run."""
        if self.holder.in_transaction:
            return
        at = load_state(self.connection, RUN)
        with closing(connect(self.connection.path, timeout=0)) as theirs:
            save(Buffer(), theirs, at)
        self.is_lost = True

    def die(self) -> None:
        self.compare()
        self.state = load_state(self.connection, RUN)
        self.begin()

    def closing(self) -> None:
        self.holder.close()
        found = load_state(self.connection, RUN)
        newest = read_archive(self.connection, RUN)[:1]
        assert [decode(stored) for stored in newest] == [found] * len(newest)


def test_two_processes_at_one_lock(database: Path) -> None:
    with Outage(database), pytest.raises(ChildError, match="locked"):
        Outage(database)
    with closing(sqlite3.connect(database, timeout=0, autocommit=True)) as plain:
        plain.execute("BEGIN IMMEDIATE")


def lose(connection: AgentConnection, tool_name: str, version: int) -> None:
    """Lose a saved result, each checkpoint after a version, and the row of the run."""
    connection.execute("DELETE FROM tool_effects WHERE tool_name = ?", (tool_name,))
    connection.execute(
        "UPDATE run_checkpoints SET body = zeroblob(length(body)) WHERE version > ?", (version,)
    )
    connection.execute(
        "UPDATE agent_runs SET context_json = replace(context_json, 'urgent', 'normal')"
    )


def test_a_result_that_was_dropped_and_came_again_is_missed_when_it_is_lost(
    connection: AgentConnection, database: Path, tools: Tools
) -> None:
    buffer, state = Buffer(2), agent.start(connection, ticket(), "s1")
    work: dict[str, Any] = {"save": buffer.save, "execute": buffer.execute}
    with locked(database):
        while state.version < 3:
            state = agent.run_next_action(connection, state, "s1", tools, **work)
    buffer.flush(connection)
    connection.execute("UPDATE run_checkpoints SET body = zeroblob(9) WHERE version > 0")
    again = recover(connection, RUN, "s2").state
    while again is not None and again.next_action != "draft_reply":
        again = agent.run_next_action(connection, again, "s2", tools, save=save_kept)
    assert again is not None
    lose(connection, "lookup_runbook", again.version - 2)
    report = recover(connection, RUN, "s3")
    assert report.state is None
    assert f"{RUN}:lookup_runbook" in report.reason


def test_a_reused_result_that_was_dropped_is_still_a_saved_one(
    connection: AgentConnection, database: Path, tools: Tools
) -> None:
    state = agent.start(connection, ticket(), "s1")
    state = agent.run_next_action(connection, state, "s1", tools, save=save_kept)
    with pytest.raises(SimulatedCrash):
        agent.run_next_action(connection, state, "s1", tools, crash_after_tool=True)
    buffer = Buffer(2)
    work: dict[str, Any] = {"save": buffer.save, "execute": buffer.execute}
    with locked(database):
        while state.version < 3:
            state = agent.run_next_action(connection, state, "s2", tools, **work)
        forms = {w.name: w.form for w in buffer.not_durable if w.event_type == "tool_reused"}
    assert forms == {KEYS[0]: "summary"}
    buffer.flush(connection)
    lose(connection, "lookup_runbook", 1)
    report = recover(connection, RUN, "s3")
    assert report.state is None
    assert f"{RUN}:lookup_runbook" in report.reason
