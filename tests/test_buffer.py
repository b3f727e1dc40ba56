"""The buffer: nothing in it is taken for stored, and what it reports is what a death takes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import new_database, rows

from lesson_lib.checkpoints.archive import Keep, create_archive, read_archive
from lesson_lib.checkpoints.codec import LARGEST, decode
from lesson_lib.checkpoints.history import Window, create_history, read_history
from lesson_lib.checkpoints.redaction import Redact
from lesson_lib.errors import (
    CheckpointConflictError,
    CheckpointSizeError,
    ChildError,
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    LeaseLostError,
    LessonError,
    RunCompletedError,
    StaleVersionError,
    StorageError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.labs.recovery_path import outage
from lesson_lib.labs.recovery_path.outage import Outage, WatchedBuffer, kill_at, names_on_disk
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step, ToolCall, ToolResult
from lesson_lib.recovery.buffer import BufferedStore, _joined
from lesson_lib.recovery.recover import recover
from lesson_lib.riders.claims import Claimed, claim_run, create_claims, release
from lesson_lib.riders.outbox import PutCommand, commands, create_outbox
from lesson_lib.sqlite import SQLiteStore, connect
from lesson_lib.sqlite.connection import AgentConnection, AgentCursor
from lesson_lib.store import Rider
from lesson_lib.sweep import run_session
from lesson_lib.sweep.hooks import Point, statements
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

RUN = "run-T104"
KEYS = [f"{RUN}:lookup_runbook", f"{RUN}:draft_reply"]
KEEP = Keep(TICKET_SCHEMA)
ALL = ["version 1", KEYS[0], "version 2", KEYS[1], "version 3", "version 4"]


@contextmanager
def opened(folder: Path, *riders: Rider, timeout: float = 0) -> Iterator[SQLiteStore]:
    """Open a new database as a buffer wants it: no call waits for a lock."""
    folder.mkdir(exist_ok=True)
    with closing(connect(new_database(folder), timeout=timeout)) as connection:
        create_archive(connection)
        yield SQLiteStore(connection, "session-1", riders or (KEEP,))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with opened(tmp_path) as store:
        yield store


@contextmanager
def locked(store: SQLiteStore) -> Iterator[None]:
    """Hold the lock that writers need, from a second connection: an `Outage` that costs nothing."""
    with closing(sqlite3.connect(store.connection.path, autocommit=True)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield


def started(store: SQLiteStore) -> RunState:
    return ticket_agent.start(store, RUN)


def save(buffer: BufferedStore, state: RunState, **found: JSONValue) -> RunState:
    return buffer.save_checkpoint(state, Step("step", found, "step"))


def execute(
    buffer: BufferedStore,
    key: str,
    function: Callable[[], Any] | None = None,
    tool_name: str = "tool",
    tool_input: JSONValue = None,
    run_id: str = RUN,
) -> ToolResult:
    return buffer.execute_once(ToolCall(run_id, key, tool_name, tool_input, function or key.upper))


def names(buffer: BufferedStore) -> list[str]:
    return [waiting.name for waiting in buffer.not_durable]


def forms(buffer: BufferedStore) -> dict[str, str]:
    return {waiting.name: waiting.form for waiting in buffer.not_durable}


def kinds(store: SQLiteStore) -> list[str]:
    return [event.event_type for event in store.read_events(RUN)]


def on_disk(store: SQLiteStore) -> list[str]:
    return names_on_disk(store.connection.path, RUN)


def all_rows(store: SQLiteStore) -> Any:
    found = rows(store.connection.path)
    found["agent_events"] = [row[:-1] for row in found["agent_events"]]
    return found


def undisturbed(folder: Path, tools: Tools) -> Any:
    """Return all rows of a run with no buffer, whose store was never away."""
    with opened(folder) as plain:
        others = Tools(tools.runbooks, Ledger(folder / "ledger.txt"))
        ticket_agent.run_to_end(plain, started(plain), others)
        return all_rows(plain)


# While the store is there, and while it is not


def test_with_the_store_there_all_is_as_without_a_buffer(
    tmp_path: Path, store: SQLiteStore, tools: Tools
) -> None:
    buffer = BufferedStore(store)
    end = ticket_agent.run_to_end(buffer, ticket_agent.start(buffer, RUN), tools)
    assert (end.status, buffer.not_durable) == ("completed", ())
    assert all_rows(store) == undisturbed(tmp_path / "other", tools)


@pytest.mark.parametrize("limit", [6, 8])
def test_a_run_goes_on_without_its_store_and_ends_as_with_it(
    tmp_path: Path, store: SQLiteStore, tools: Tools, limit: int
) -> None:
    buffer, begin = BufferedStore(store, limit), started(store)
    before = all_rows(store)
    with locked(store):
        end = ticket_agent.run_to_end(buffer, begin, tools)
        with pytest.raises(StorageError, match="locked"):
            buffer.flush()
        assert all_rows(store) == before
        assert buffer.load_state(RUN) == end
    assert names(buffer) == ALL
    buffer.flush()
    assert buffer.not_durable == ()
    assert store.load_state(RUN) == buffer.load_state(RUN) == end
    assert tools.ledger.lines() == KEYS
    assert all_rows(store) == undisturbed(tmp_path / "other", tools)


def test_what_waits_goes_in_before_what_comes_next(store: SQLiteStore, tools: Tools) -> None:
    buffer, state = BufferedStore(store), started(store)
    with locked(store):
        for _ in range(2):
            state = ticket_agent.run_next_action(buffer, state, tools)
    assert names(buffer) == ALL[:3]
    seen = []

    def passing(point: str) -> None:
        seen.append((point, names(buffer), store.load_state(RUN).version))

    ticket_agent.run_next_action(buffer, state, tools, passing=passing)
    assert seen[1] == ("draft_reply:tool_ran", [], 2)
    assert on_disk(store) == ALL[:5]


def test_one_outage_follows_another(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store), started(store)
    for _ in range(2):
        with locked(store):
            for _ in range(2):
                state = save(buffer, state)
        state = save(buffer, state)
        assert buffer.not_durable == ()
        assert store.load_state(RUN) == state
    assert state.version == 6


def test_an_event_waits_in_its_place(store: SQLiteStore, tools: Tools) -> None:
    buffer, state = BufferedStore(store, 2), started(store)
    with locked(store):
        state = ticket_agent.resume(buffer, RUN)
        state = save(buffer, state)
        buffer.record_event(RUN, "noticed", "look", {"n": 1})
        save(buffer, state)
        assert kinds(store) == ["run_started"] == [e.event_type for e in buffer.read_events(RUN)]
    assert names(buffer) == ["run_resumed", "version 1", "noticed", "version 2"]
    buffer.record_event(RUN, "noticed", "again")
    assert kinds(store) == [
        *("run_started", "run_resumed", "checkpoint_saved", "noticed", "checkpoint_saved"),
        "noticed",
    ]
    assert store.read_events(RUN)[1].detail == '{"version": 0}'
    assert buffer.unfinished_runs() == [RUN]


def test_each_call_meets_the_closed_store_once(store: SQLiteStore) -> None:
    buffer, state, tries = BufferedStore(store), started(store), list[str]()
    begun = "BEGIN IMMEDIATE"
    store.connection.set_trace_callback(lambda sql: tries.append(sql) if sql == begun else None)
    with locked(store):
        for number in range(3):
            state = save(buffer, state)
            execute(buffer, f"key-{number}")
            assert tries == [begun] * 2
            tries.clear()


def test_a_full_disk_is_an_outage_too(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store, 30), started(store)
    (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
    store.connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    for number in range(10):
        noise = "".join(chr(33 + (n * n * 7 + number) % 90) for n in range(3_000))
        state = save(buffer, state, draft=noise)
        execute(buffer, f"key-{number}", noise.lower)
    assert buffer.not_durable
    with pytest.raises(StorageError, match="disk is full"):
        buffer.flush()
    assert store.load_state(RUN).version == kinds(store).count("checkpoint_saved") < 10
    everything = [n for i in range(10) for n in (f"version {i + 1}", f"key-{i}")]
    assert on_disk(store) + names(buffer) == everything
    store.connection.execute("PRAGMA max_page_count = 10000").fetchall()
    buffer.flush()
    assert on_disk(store) == everything
    assert store.load_state(RUN) == state


def test_what_changes_after_the_save_is_not_written(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store), started(store)
    found, said = {"plan": {"n": 1}}, [{"text": "a"}]
    with locked(store):
        state = buffer.save_checkpoint(state, Step("step", found, "step", "", {"documents": said}))
        found["plan"]["n"], said[0]["text"] = 2, "b"
    buffer.flush()
    assert store.load_state(RUN) == state


# The bound


@pytest.mark.parametrize("limit", range(3, 8))
def test_the_bound_holds_and_what_cannot_be_had_again_stays(
    store: SQLiteStore, tools: Tools, limit: int
) -> None:
    buffer, state = BufferedStore(store, limit), started(store)

    def passing(point: str) -> None:
        whole = [w for w in buffer.not_durable if w.form == "whole"]
        assert len(whole) == min(limit, len(buffer.not_durable))
        newest = [w.form for w in buffer.not_durable if w.event_type == "checkpoint_saved"][-1:]
        assert newest in ([], ["whole"])

    with locked(store):
        end = ticket_agent.run_to_end(buffer, state, tools, passing=passing)
    dropped = [name for name, form in forms(buffer).items() if form == "summary"]
    assert dropped == [f"version {n}" for n in range(1, 7 - limit)]
    buffer.flush()
    assert store.load_state(RUN) == end
    assert on_disk(store) == ALL
    kept = [decode(stored, TICKET_SCHEMA) for stored in read_archive(store.connection, RUN)]
    assert [state.version for state in kept] == [
        v for v in range(4, -1, -1) if f"version {v}" not in dropped
    ]
    fields = ["ticket", "priority", "runbook", "draft", "reply"]
    for state in kept:  # what a summary found stands in the next one
        assert set(state.context) == set(fields[: state.version + 1])
    gone = [from_json(e.detail) for e in store.read_events(RUN) if e.event_type[:7] == "payload"]
    assert [f"version {detail['version']}" for detail in gone] == dropped


def test_a_flushed_buffer_is_recovered_from(store: SQLiteStore, tools: Tools) -> None:
    buffer, state = BufferedStore(store, 3), started(store)
    with locked(store):
        end = ticket_agent.run_to_end(buffer, state, tools)
    buffer.flush()
    connection = store.connection
    assert recover(connection, RUN, "session-2", ticket_agent).step == "newest checkpoint"
    connection.execute("UPDATE run_checkpoints SET body = x'00' WHERE version = 4")
    connection.execute("UPDATE agent_runs SET context_json = '{}'")
    report = recover(connection, RUN, "session-2", ticket_agent)
    assert report.state is not None
    # Versions 1 to 3 were dropped: only the first one is left to go on from.
    assert report.chosen == 0
    again = ticket_agent.run_to_end(store, report.state, tools)
    assert again.context == end.context
    assert tools.ledger.lines() == KEYS  # the results were kept


def test_a_tool_is_not_called_where_its_result_has_no_room(
    store: SQLiteStore, tools: Tools
) -> None:
    buffer, state = BufferedStore(store, 2), started(store)
    with locked(store), pytest.raises(StorageError, match="buffer is full"):
        ticket_agent.run_to_end(buffer, state, tools)
    assert tools.ledger.lines() == KEYS[:1]
    assert names(buffer) == ALL[:3]
    end = ticket_agent.run_to_end(buffer, buffer.load_state(RUN), tools)
    assert (end.status, tools.ledger.lines()) == ("completed", KEYS)


VALUES = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=2))


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(found=st.lists(VALUES, min_size=2, max_size=4), appended=st.lists(VALUES, min_size=4))
def test_what_steps_brought_one_after_the_other_the_last_of_them_brings(
    found: list[Any], appended: list[Any]
) -> None:
    state = RunState.begin(RUN, "T104", "step", {"a": [1]})
    steps = [
        Step(
            "step", new, "step", "", {name: more for name, more in grown.items() if name not in new}
        )
        for new, grown in zip(found, appended, strict=False)
    ]
    one, other = state, replace(state, version=len(steps) - 1)
    for step in steps:
        one = one.after(step)
    assert other.after(reduce(_joined, steps)) == one


def test_a_summary_is_small(store: SQLiteStore, tools: Tools) -> None:
    buffer, state = BufferedStore(store, 3), started(store)
    with locked(store):
        ticket_agent.run_to_end(buffer, state, tools)
    summaries = [w for w in buffer.not_durable if w.form == "summary"]
    assert summaries
    for waiting in summaries:
        assert waiting.step is not None
        assert (waiting.result, waiting.step.found) == (None, {})
        assert waiting.step.next_action in ticket_agent.actions


def test_a_buffer_without_room_is_refused(store: SQLiteStore) -> None:
    for limit in (1, 0, -1):
        with pytest.raises(InvalidStateError, match="2 is the least"):
            BufferedStore(store, limit)


# Somebody else went on


def test_a_worker_that_lost_its_run_forces_nothing_in(store: SQLiteStore, tools: Tools) -> None:
    buffer, state = BufferedStore(store), started(store)
    with locked(store):
        state = save(buffer, state)
        execute(buffer, "key")
        state = save(buffer, state)
    other = ticket_agent.run_next_action(
        replace(store, session="session-2"), store.load_state(RUN), tools
    )
    before, waiting, calls = all_rows(store), buffer.not_durable, list[str]()
    for _ in range(2):
        with pytest.raises(StaleVersionError, match="load the state again"):
            buffer.flush()
        with pytest.raises(StaleVersionError):
            save(buffer, state)
        with pytest.raises(StaleVersionError):
            execute(buffer, "more", lambda: calls.append("called"))
    assert calls == []
    assert (all_rows(store), buffer.not_durable) == (before, waiting)
    assert store.load_state(RUN) == other


def test_a_conflict_after_a_good_beginning_takes_the_beginning_back(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store), started(store)
    with locked(store):
        execute(buffer, "first")
        save(buffer, state)
        execute(buffer, "second")
    store.execute_once(ToolCall(RUN, "second", "tool", None, lambda: "other"))
    before = all_rows(store)
    with pytest.raises(IdempotencyConflictError, match="second got a result from another"):
        buffer.flush()
    assert all_rows(store) == before
    assert names(buffer) == ["first", "version 1", "second"]


@pytest.mark.parametrize("saves", [1, 3])  # with three, the first has become a summary
def test_a_file_that_was_replaced_is_a_conflict(store: SQLiteStore, saves: int) -> None:
    buffer = BufferedStore(store, 2)
    state = save(buffer, started(store))
    with locked(store):
        for _ in range(saves):
            state = save(buffer, state)
    # A run of the same version and another content, as after a backup was restored.
    store.connection.execute(
        "UPDATE agent_runs SET context_json = json_set(context_json, '$.draft', 'other')"
    )
    before, waiting = all_rows(store), names(buffer)
    with pytest.raises(CheckpointConflictError, match="another content"):
        buffer.flush()
    assert (all_rows(store), names(buffer)) == (before, waiting)


# With riders


def test_a_lost_claim_stops_the_flush(store: SQLiteStore) -> None:
    connection, state = store.connection, started(store)
    create_claims(connection)
    claim = claim_run(connection, RUN, worker="w", lease=timedelta(hours=1))
    assert claim is not None
    buffer = BufferedStore(replace(store, riders=(Claimed(claim), KEEP)), 2)
    with locked(store):
        for _ in range(3):
            state = save(buffer, state)
    release(connection, claim)
    with pytest.raises(LeaseLostError):
        buffer.flush()
    assert len(buffer.not_durable) == 3


def test_what_a_rider_changes_at_the_flush_is_gone_on_from(tmp_path: Path) -> None:
    with opened(tmp_path, Redact(), Window(window=4), KEEP) as store:
        create_history(store.connection)
        buffer, state = BufferedStore(store, 2), started(store)

        def talk(text: str) -> RunState:
            said = [{"role": "user", "text": text}]
            return buffer.save_checkpoint(
                state, Step("talk", {}, "talk", "", {"conversation": said})
            )

        with locked(store):
            for n in range(6):
                state = talk(f"ask ada@example.com about {n}")
        state = talk("thank you")
        state = talk("and good bye")
        assert store.load_state(RUN) == state
        assert len(state.context["conversation"]) <= 5
        assert "ada@example.com" not in state.context_json
        assert "ada@example.com" not in str(read_history(store.connection, RUN))


def test_what_rides_with_a_step_rides_with_its_summary_too(store: SQLiteStore) -> None:
    create_outbox(store.connection)
    buffer, state = BufferedStore(store, 2), started(store)
    with locked(store):
        for n in range(4):
            rider = PutCommand(f"{RUN}:{n}", "send", {"n": n})
            state = buffer.save_checkpoint(state, Step("step", {}, "step", riders=(rider,)))
    assert list(forms(buffer).values()) == ["summary", "summary", "whole", "whole"]
    buffer.flush()
    assert [command.request["n"] for command in commands(store.connection)] == [0, 1, 2, 3]


# What is refused, and what is no outage


def test_what_no_store_would_take_is_refused_at_once(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store), started(store)
    with locked(store):
        with pytest.raises(JSONValueError):
            save(buffer, state, draft=float("nan"))
        with pytest.raises(JSONValueError):
            execute(buffer, "key", tool_input={"a": float("inf")})
        with pytest.raises(JSONValueError):
            execute(buffer, "key", lambda: {1: 2})
        with pytest.raises(UnknownRunError):
            execute(buffer, "key", run_id="run-T999")
        assert buffer.not_durable == ()
        done = save(buffer, state)
        with pytest.raises(StaleVersionError, match="returned last"):
            save(buffer, state)
        end = buffer.save_checkpoint(done, Step("step", {}, None))
        with pytest.raises(RunCompletedError):
            save(buffer, end)
        assert names(buffer) == ["version 1", "version 2"]
    buffer.flush()
    assert store.load_state(RUN) == end


@pytest.mark.parametrize(
    ("found", "error"),
    [({"no_such_field": 1}, InvalidStateError), ({"draft": "x" * LARGEST}, CheckpointSizeError)],
)
def test_what_a_rider_refuses_is_never_forgotten(
    store: SQLiteStore, found: Any, error: type[LessonError]
) -> None:
    buffer, state = BufferedStore(store), started(store)
    with locked(store):
        save(buffer, save(buffer, state), **found)
    before = all_rows(store)
    for _ in range(2):
        with pytest.raises(error):
            buffer.flush()
    assert (all_rows(store), names(buffer)) == (before, ["version 1", "version 2"])


def test_a_mistake_in_a_program_is_not_taken_for_an_outage(database: Path) -> None:
    with closing(connect(database, timeout=0)) as connection:
        store = SQLiteStore(connection, "session-1", (KEEP,))
        buffer, state = BufferedStore(store), started(replace(store, riders=()))
        with pytest.raises(StorageError, match="no such table: run_checkpoints"):
            save(buffer, state)
        with connection, pytest.raises(TransactionError):
            save(buffer, state)
        with pytest.raises(ZeroDivisionError):
            execute(buffer, "key", lambda: 1 // 0)
        assert buffer.not_durable == ()


def test_a_tool_that_fails_leaves_nothing(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store), started(store)
    with locked(store):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                execute(buffer, "key", lambda: 1 // 0)
        save(buffer, state)
    assert names(buffer) == ["version 1"]


def test_a_tool_that_meets_its_own_outage_is_called_once(
    tmp_path: Path, store: SQLiteStore
) -> None:
    started(store)
    calls: list[str] = []
    with opened(tmp_path / "other") as other:

        def tool() -> None:
            calls.append("called")
            with other.connection:
                pass

        buffer = BufferedStore(store)
        with locked(other), pytest.raises(StorageError, match="locked"):
            execute(buffer, "key", tool)
    assert (calls, buffer.not_durable) == (["called"], ())


def test_a_result_is_remembered_though_the_store_went_away_during_the_call(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, calls = BufferedStore(store), list[str]()
    started(store)
    plain = AgentCursor.execute

    def away(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR"
        raise StorageError("the disk is away") from error

    def tool() -> int:
        calls.append("called")
        monkeypatch.setattr(AgentCursor, "execute", away)
        return 1

    assert execute(buffer, "key", tool).value == 1
    assert execute(buffer, "key", tool).reused
    assert calls == ["called"]
    monkeypatch.setattr(AgentCursor, "execute", plain)
    buffer.flush()
    assert on_disk(store) == ["key", "key"]  # executed, and reused


def test_while_something_waits_a_buffer_is_one_runs(store: SQLiteStore) -> None:
    buffer, state = BufferedStore(store), started(store)
    other = ticket_agent.start(buffer, "run-T105")
    with locked(store):
        save(buffer, state)
        with pytest.raises(InvalidStateError, match="run-T105 needs a buffer of its own"):
            save(buffer, other)
        with pytest.raises(InvalidStateError, match="run-T105 needs a buffer of its own"):
            execute(buffer, "key", run_id="run-T105")
    buffer.flush()
    assert save(buffer, other).version == 1


# Results


def test_a_result_that_waits_answers_the_repeat(store: SQLiteStore) -> None:
    buffer, calls = BufferedStore(store), list[int]()
    started(store)

    def tool() -> int:
        calls.append(1)
        return len(calls)

    with locked(store):
        first, again = execute(buffer, "key", tool), execute(buffer, "key", tool)
        assert (first.value, first.reused, again.value, again.reused) == (1, False, 1, True)
        for other in ({"tool_input": {"other": 1}}, {"tool_name": "other"}):
            with pytest.raises(IdempotencyConflictError, match="input differ"):
                execute(buffer, "key", tool, **other)
    assert execute(buffer, "key", tool).reused
    assert (calls, names(buffer)) == ([1], [])
    assert kinds(store) == ["run_started", "tool_executed", "tool_reused", "tool_reused"]


def test_a_saved_result_is_found_while_nothing_can_be_written(store: SQLiteStore) -> None:
    buffer, state, calls = BufferedStore(store), started(store), list[str]()
    ticket_agent.start(store, "run-T105")
    execute(buffer, "key")
    store.execute_once(ToolCall("run-T105", "theirs", "tool", None, lambda: 1))
    with locked(store):
        save(buffer, state)
        found = execute(buffer, "key", lambda: calls.append("called"))
        assert (found.value, found.reused) == ("KEY", True)
        for key, tool_input in (("key", 1), ("theirs", None)):
            with pytest.raises(IdempotencyConflictError):
                execute(buffer, key, tool_input=tool_input)
    assert names(buffer) == ["version 1", "key"]
    buffer.flush()
    assert calls == []
    assert kinds(store)[1:] == ["tool_executed", "checkpoint_saved", "tool_reused"]


def test_where_nobody_can_read_no_tool_is_called(store: SQLiteStore) -> None:
    state, calls = started(store), list[str]()
    database = store.connection.path
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    store.connection.close()
    alone = sqlite3.connect(database, autocommit=True)
    late = sqlite3.connect(database, timeout=0, autocommit=True, factory=AgentConnection)
    late.path, late.timeout, late.row_factory = database, 0, sqlite3.Row
    buffer = BufferedStore(replace(store, connection=late))
    with closing(alone), closing(late):
        alone.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()  # keeps readers out, too
        alone.execute("UPDATE agent_runs SET status = status")
        state = save(buffer, state)
        with pytest.raises(StorageError, match="locked"):
            execute(buffer, "key", lambda: calls.append("called"))
    assert (calls, names(buffer), state.version) == ([], ["version 1"], 1)


def test_a_lock_folder_that_cannot_be_made_stops_no_run(store: SQLiteStore, tools: Tools) -> None:
    store.connection.path.with_name("agent.db-locks").write_text("in the way", "utf-8")
    buffer = BufferedStore(store)
    end = ticket_agent.run_to_end(buffer, started(store), tools)
    assert (end.status, tools.ledger.lines()) == ("completed", KEYS)
    assert (store.load_state(RUN), names(buffer)) == (end, [])


# Deaths. What the dead had been given and is not on disk is what they had reported.

POINTS = outage.points()
SAMPLE = ("lookup_runbook:before_checkpoint", "finish:checkpoint_saved")


@pytest.mark.parametrize("back", [None, "finish:before_checkpoint"])
@pytest.mark.parametrize(
    "point", [p if p in SAMPLE else pytest.param(p, marks=pytest.mark.prove) for p in POINTS]
)
def test_killed_at_any_point_the_report_and_the_loss_agree(
    tmp_path: Path, tools: Tools, point: str, back: str | None
) -> None:
    if (point, back) == ("flushed", None):
        with pytest.raises(ChildError, match="never came to flushed: it finished"):
            kill_at(tmp_path, point)
        return
    row = kill_at(tmp_path, point, back=back, limit=3)
    assert row["reported"] == row["lost"]
    assert (row["lost"] == "nothing") == (
        POINTS.index(point) < 5 or (back is not None and point in LATE)
    )
    with opened_again(tmp_path) as store:
        before, called = on_disk(store), tools.ledger.lines()
        state = ticket_agent.resume_or_start(store, RUN)
        assert ticket_agent.run_to_end(store, state, tools).status == "completed"
    # Called again is what ran and was not saved, and nothing else.
    again = [key for key in called if key not in before]
    assert [key for key in KEYS if tools.ledger.count(key) == 2] == again
    assert len(tools.ledger.lines()) == len(KEYS) + len(again)


LATE = ("finish:checkpoint_saved", "flushed")


@contextmanager
def opened_again(folder: Path) -> Iterator[SQLiteStore]:
    with closing(connect(folder / "agent.db")) as connection:
        yield SQLiteStore(connection, "session-2", (KEEP,))


def flushing(folder: Path, session: str, point: Point) -> None:
    """Be a session that tells at each statement what is not durable, and may be killed there.

    The store is away from the lookup of the runbook on, and comes back before the flush.
    """
    tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))
    report = Ledger(folder / "report")
    with opened(folder) as store:
        buffer, state = WatchedBuffer(store, 3), started(store)
        state = ticket_agent.run_next_action(buffer, state, tools)

        def told(label: str) -> None:
            line = {"at": label, "not_durable": names(buffer), "given": buffer.given}
            report.write(to_json(line))
            point(label)

        with statements(AgentCursor, told):
            with locked(store):
                ticket_agent.run_to_end(buffer, state, tools)
            buffer.flush()
            told("flushed")


def killed_at(folder: Path, number: int | None) -> bool:
    """Kill a session at a point and compare; return whether it had committed and not said so."""
    run_session("test_buffer:flushing", folder, "session-1", number)
    last = from_json(Ledger(folder / "report").lines()[-1])
    with opened_again(folder) as store:
        stored = on_disk(store)
        store.load_state(RUN)  # no gap, nothing half
    lost = [name for name in last["given"] if name not in stored]
    if last["at"] == "after COMMIT" and last["not_durable"] and not lost:
        return True
    assert lost == last["not_durable"], last["at"]
    assert stored == last["given"][: len(stored)]
    return False


def test_killed_in_a_flush_all_of_it_is_there_or_nothing(tmp_path: Path) -> None:
    points = run_session("test_buffer:flushing", tmp_path / "whole", "session-1")
    last = len(points)
    sample = (last // 2, last - 8, last - 2, last - 1, last)
    ends = [killed_at(tmp_path / str(number), number) for number in sample]
    assert ends == [False, False, False, True, False]
    assert points[-3:] == ["before COMMIT", "after COMMIT", "flushed"]


@pytest.mark.prove
def test_killed_at_any_statement_the_report_and_the_loss_agree(tmp_path: Path) -> None:
    points = run_session("test_buffer:flushing", tmp_path / "whole", "session-1")
    ends = [killed_at(tmp_path / str(n), n) for n in range(1, len(points) + 1)]
    assert ends.count(True) == 1


STEPS = st.lists(
    st.sampled_from(["save", "save", "call", "away", "back", "flush", "other", "die"]), max_size=25
)


def live(steps: list[str], limit: int) -> None:
    with TemporaryDirectory() as folder, opened(Path(folder)) as store:
        store.connection.execute("PRAGMA synchronous = OFF")
        life = Life(store, limit)
        for step in [*steps, "die"]:
            getattr(life, step)()
        life.close()


@settings(derandomize=True, deadline=None, max_examples=25, database=None)
@given(steps=STEPS, limit=st.integers(2, 5))
def test_whatever_happens_the_report_is_the_loss(steps: list[str], limit: int) -> None:
    live(steps, limit)


@pytest.mark.prove
@settings(derandomize=True, deadline=None, max_examples=400, database=None)
@given(steps=STEPS, limit=st.integers(2, 5))
def test_whatever_happens_for_long_the_report_is_the_loss(steps: list[str], limit: int) -> None:
    live(steps, limit)


class Life:
    """What happens to a run and its store, and what must be true after each step."""

    def __init__(self, store: SQLiteStore, limit: int) -> None:
        self.store, self.limit = store, limit
        self.holder = sqlite3.connect(store.connection.path, autocommit=True)
        self.state = started(store)
        self.keys = count(1)
        self.begin()

    def begin(self) -> None:
        """Begin a process life."""
        self.buffer = WatchedBuffer(self.store, self.limit)
        self.is_lost = False
        self.before = on_disk(self.store)

    def save(self) -> None:
        self.try_it(lambda: setattr(self, "state", save(self.buffer, self.state)))

    def call(self) -> None:
        self.try_it(lambda: execute(self.buffer, f"key-{next(self.keys)}"))

    def flush(self) -> None:
        def flush() -> None:
            if self.holder.in_transaction and self.buffer.not_durable:
                with pytest.raises(StorageError):
                    self.buffer.flush()
            else:
                self.buffer.flush()
                assert self.buffer.not_durable == ()

        self.try_it(flush)

    def try_it(self, step: Callable[[], object]) -> None:
        """Take a step; a worker that lost its run gets an error, and no other worker does."""
        try:
            step()
        except StaleVersionError:
            assert self.is_lost
        except StorageError as error:
            if "buffer is full" not in str(error):
                raise
        self.compare()

    def compare(self) -> None:
        stored, mine = on_disk(self.store), self.buffer.given
        lost = [name for name in mine if name not in stored]
        # Another worker's versions have the names of ours.
        reported = [n for n in names(self.buffer) if not self.is_lost or n not in stored]
        assert lost == reported
        if not self.is_lost:
            assert stored == self.before + mine[: len(mine) - len(lost)]

    def away(self) -> None:
        if not self.holder.in_transaction:
            self.holder.execute("BEGIN EXCLUSIVE")

    def back(self) -> None:
        if self.holder.in_transaction:
            self.holder.execute("ROLLBACK")

    def other(self) -> None:
        """Let another worker go on with the run."""
        if not self.holder.in_transaction:
            self.store.save_checkpoint(self.store.load_state(RUN), Step("step", {}, "step"))
            self.is_lost = True

    def die(self) -> None:
        self.compare()
        self.state = self.store.load_state(RUN)
        self.begin()

    def close(self) -> None:
        self.holder.close()
        found = self.store.load_state(RUN)
        newest = read_archive(self.store.connection, RUN)[:1]
        assert [decode(stored, TICKET_SCHEMA) for stored in newest] == [found]


def test_two_processes_at_one_lock(database: Path) -> None:
    with Outage(database), pytest.raises(ChildError, match="locked"):
        Outage(database)
    with closing(sqlite3.connect(database, timeout=0, autocommit=True)) as plain:
        plain.execute("BEGIN IMMEDIATE")
