"""Calling a tool once per key; what a tool really did is told by a ledger outside the database."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from store_parts import new_database, rows

from lesson_lib.errors import (
    CorruptStateError,
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    KeyBusyError,
    LessonError,
    SimulatedCrash,
    StorageError,
    ToolResultError,
    TransactionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONValue
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step, ToolCall, ToolResult
from lesson_lib.processes import Child
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    delete_run,
    effects,
    execute_once,
    load_state,
    read_events,
    save_checkpoint,
    start_run,
)

VALUE = {"step": "Wait.", "minutes": [5, 0.5, None, True]}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = new_database(tmp_path)
    with closing(connect(path)) as connection:
        for run_id in ("run-1", "run-2"):
            start_run(connection, RunState.begin(run_id, "T1", "look", {}), session="s1")
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.txt")


def once(
    connection: AgentConnection, function: Callable[[], JSONValue], **changed: object
) -> ToolResult:
    wanted = {"run_id": "run-1", "key": "k", "tool_name": "lookup", "tool_input": {"code": "x"}}
    how: dict[str, Any] = {"session": "s1"}
    how |= {name: changed.pop(name) for name in ("session", "wait") if name in changed}
    about: dict[str, Any] = {**wanted, **changed}
    return execute_once(connection, ToolCall(**about, function=function), **how)


def tool(ledger: Ledger, value: JSONValue = VALUE) -> Callable[[], JSONValue]:
    def function() -> JSONValue:
        ledger.write("called")
        return value

    return function


def kinds(connection: AgentConnection, run_id: str = "run-1") -> list[str]:
    return [event.event_type for event in read_events(connection, run_id)][1:]


# Once, and then the saved result.


def test_a_repeat_gets_the_first_result_and_calls_nothing(
    connection: AgentConnection, ledger: Ledger
) -> None:
    first = once(connection, tool(ledger))
    second = once(connection, tool(ledger, "another"), session="s2")
    assert first == ToolResult("k", "lookup", VALUE, reused=False)
    assert second == ToolResult("k", "lookup", VALUE, reused=True)
    assert ledger.lines() == ["called"]
    events = read_events(connection, "run-1")[1:]
    assert [(event.session, event.event_type) for event in events] == [
        ("s1", "tool_executed"),
        ("s2", "tool_reused"),
    ]
    assert {(event.action, event.detail) for event in events} == {("lookup", '{"key": "k"}')}


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, "null"])
def test_a_result_that_says_nothing_is_a_result(
    connection: AgentConnection, ledger: Ledger, value: JSONValue
) -> None:
    results = [once(connection, tool(ledger, value)) for _ in range(2)]
    assert [(result.value, type(result.value)) for result in results] == [(value, type(value))] * 2
    assert ledger.lines() == ["called"]


def test_the_first_caller_gets_what_was_saved_not_what_it_may_change(
    connection: AgentConnection,
) -> None:
    value = {"b": [1], "a": 2}
    first = once(connection, lambda: value).value
    value["b"] = [1, 2]
    assert first == once(connection, lambda: None).value == {"b": [1], "a": 2}
    assert list(first) == list(once(connection, lambda: None).value)


def test_a_new_connection_finds_the_result(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    once(connection, tool(ledger))
    with closing(connect(database)) as other:
        assert once(other, tool(ledger)).reused
    assert ledger.lines() == ["called"]


def test_another_key_is_another_call(connection: AgentConnection, ledger: Ledger) -> None:
    for key in ("k", "K", "k ", "k\x00", "it's", "ключ", "a/b", "..", "k" * 255):
        assert not once(connection, tool(ledger), key=key).reused
        assert once(connection, tool(ledger), key=key).reused
    assert len(ledger.lines()) == 9


@pytest.mark.parametrize("name", ["key", "session", "tool_name"])
def test_a_name_that_no_event_can_hold_is_refused_before_the_call(
    connection: AgentConnection, ledger: Ledger, name: str
) -> None:
    with pytest.raises(InvalidStateError, match=f"{name} 'kkk.* has 256 characters"):
        once(connection, tool(ledger), **{name: "k" * 256})
    assert ledger.lines() == []


def test_an_equal_input_is_the_same_input(connection: AgentConnection, ledger: Ledger) -> None:
    once(connection, tool(ledger), tool_input={"a": 1, "b": [None]})
    assert once(connection, tool(ledger), tool_input={"b": [None], "a": 1}).reused


@pytest.mark.parametrize(
    "changed",
    [
        {"tool_input": {"code": "y"}},
        {"tool_input": {"code": "x", "more": 1}},
        {"tool_input": None},
        {"tool_name": "other"},
    ],
    ids=str,
)
def test_a_key_with_another_tool_or_input_is_a_conflict(
    connection: AgentConnection, database: Path, ledger: Ledger, changed: dict[str, object]
) -> None:
    once(connection, tool(ledger))
    before = rows(database)
    with pytest.raises(IdempotencyConflictError, match=r"the key k was used .* needs a new key"):
        once(connection, tool(ledger), **changed)
    assert rows(database) == before
    assert ledger.lines() == ["called"]


def test_input_and_error_name_no_secret(connection: AgentConnection, database: Path) -> None:
    once(connection, lambda: 1, tool_input="secret-1")
    with pytest.raises(IdempotencyConflictError) as caught:
        once(connection, lambda: 1, tool_input="secret-2")
    assert "secret" not in f"{caught.value} {rows(database)}"


# Refused before the tool runs.

BEFORE: dict[str, tuple[dict[str, object], type[LessonError], str]] = {
    "unknown run": ({"run_id": "run-9"}, UnknownRunError, r"agent\.db holds no run 'run-9'"),
    "no key": ({"key": ""}, InvalidStateError, "^key must be"),
    "key is no text": ({"key": 5}, InvalidStateError, "^key must be"),
    "no session": ({"session": ""}, InvalidStateError, "^session must be"),
    "no tool name": ({"tool_name": ""}, InvalidStateError, "^tool_name must be"),
    "input is no JSON": ({"tool_input": {"at": {1}}}, JSONValueError, r"^tool_input\.at is a set"),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_what_cannot_be_saved_is_refused_before_the_tool_runs(
    connection: AgentConnection, database: Path, ledger: Ledger, kind: str
) -> None:
    before, (changed, error, said) = rows(database), BEFORE[kind]
    with pytest.raises(error, match=said):
        once(connection, tool(ledger), **changed)
    assert (ledger.lines(), rows(database)) == ([], before)


def test_a_tool_does_not_run_inside_a_transaction(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    before = rows(database)
    with pytest.raises(TransactionError, match="inside `with connection:`"), connection:
        once(connection, tool(ledger))
    assert (ledger.lines(), rows(database)) == ([], before)


def test_a_tool_finds_no_transaction_open(connection: AgentConnection) -> None:
    assert once(connection, lambda: connection.in_transaction).value is False


def test_where_no_lock_can_be_held_the_tool_does_not_run(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    database.with_name("agent.db-locks").write_text("in the way")
    with pytest.raises(StorageError, match=r"agent\.db-locks cannot hold a lock file"):
        once(connection, tool(ledger))
    assert ledger.lines() == []


# The tool fails, or its result cannot be saved: nothing is there, and the next call runs it.


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        StopIteration(),
        TimeoutError(),
        sqlite3.OperationalError("the tool's own"),
        KeyboardInterrupt(),
        SimulatedCrash(),
    ],
    ids=repr,
)
def test_the_error_of_a_tool_comes_through_as_it_is(
    connection: AgentConnection, database: Path, ledger: Ledger, error: BaseException
) -> None:
    def fail() -> JSONValue:
        ledger.write("called")
        raise error

    before = rows(database)
    with pytest.raises(type(error)) as caught:
        once(connection, fail)
    assert caught.value is error
    assert rows(database) == before
    assert not once(connection, tool(ledger), wait=0).reused
    assert len(ledger.lines()) == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("inf"), r"result is inf"),
        ({"at": datetime(2024, 5, 1, tzinfo=UTC)}, r"result\.at is a datetime"),
        ({"steps": [{1: "wait"}]}, r"result\.steps\[0\] has the key 1"),
        (b"bytes", r"result is a bytes"),
    ],
    ids=str,
)
def test_a_result_that_is_not_json_is_refused_and_not_saved(
    connection: AgentConnection, database: Path, ledger: Ledger, value: object, said: str
) -> None:
    before = rows(database)
    with pytest.raises(ToolResultError, match=f"the tool of k ran, but its result .*: {said}"):
        once(connection, tool(ledger, value))
    assert rows(database) == before
    assert not once(connection, tool(ledger), wait=0).reused
    assert len(ledger.lines()) == 2


def test_a_result_and_its_event_are_both_there_or_neither(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON agent_events BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    before = rows(database)
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        once(connection, tool(ledger))
    assert rows(database) == before
    connection.execute("DROP TRIGGER full")
    assert not once(connection, tool(ledger), wait=0).reused


@pytest.mark.parametrize("stored", ["{", "NaN", ""])
def test_a_saved_result_that_is_damaged_is_called_corrupt(
    connection: AgentConnection, database: Path, ledger: Ledger, stored: str
) -> None:
    once(connection, tool(ledger))
    once(connection, tool(ledger), key="k2")
    with closing(sqlite3.connect(database, autocommit=True)) as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.execute(
            "UPDATE tool_effects SET result_json = ? WHERE idempotency_key = 'k'", (stored,)
        )
    before = rows(database)
    with pytest.raises(CorruptStateError, match="the saved result of k is not JSON: restore"):
        once(connection, tool(ledger))
    assert rows(database) == before
    assert once(connection, tool(ledger), key="k2").value == VALUE
    assert len(ledger.lines()) == 2


# Two callers of one key at the same moment.

CALLER = """
import sys, time
from pathlib import Path
from lesson_lib.json_text import to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import ToolCall
from lesson_lib.sqlite import connect, execute_once
database, ledger, name = Path(sys.argv[1]), Ledger(Path(sys.argv[2])), sys.argv[3]
connection = connect(database)
print("ready", flush=True)
for line in sys.stdin:
    key = line.strip()
    def slow():
        ledger.write(key)
        time.sleep(0.005)
        return {"by": name}
    result = execute_once(connection, ToolCall("run-1", key, "lookup", None, slow), session=name)
    print(result.reused, to_json(result.value), flush=True)
"""


def test_two_processes_with_one_key_call_the_tool_once(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    with (
        Child("-c", CALLER, database, ledger.path, "a") as a,
        Child("-c", CALLER, database, ledger.path, "b") as b,
    ):
        assert (a.read(), b.read()) == ("ready", "ready")
        for number in range(30):
            for caller in (a, b):
                caller.tell(str(number))
            answers = [caller.read().split(maxsplit=1) for caller in (a, b)]
            assert sorted(reused for reused, _ in answers) == ["False", "True"]
            assert answers[0][1] == answers[1][1]
    assert ledger.lines() == [str(number) for number in range(30)]
    assert kinds(connection) == ["tool_executed", "tool_reused"] * 30


def test_two_threads_with_one_key_call_the_tool_once(database: Path, ledger: Ledger) -> None:
    both_here = threading.Barrier(2)

    def caller(number: int) -> ToolResult:
        with closing(connect(database)) as own:
            both_here.wait()
            return once(own, tool(ledger, threading.get_ident()), key=str(number))

    with ThreadPoolExecutor(2) as threads:
        for number in range(30):
            first, second = threads.map(caller, [number] * 2)
            assert first.value == second.value
            assert first.reused != second.reused
    assert len(ledger.lines()) == 30


def test_two_tools_with_one_key_at_the_same_moment_are_a_conflict(
    database: Path, ledger: Ledger
) -> None:
    both_here = threading.Barrier(2)

    def caller(name: str) -> str:
        with closing(connect(database)) as own:
            both_here.wait()
            try:
                return str(once(own, tool(ledger, name), tool_name=name).value)
            except IdempotencyConflictError:
                return "conflict"

    with ThreadPoolExecutor(2) as threads:
        said = sorted(threads.map(caller, ["a", "b"]))
    assert said in (["a", "conflict"], ["b", "conflict"])
    assert ledger.lines() == ["called"]


STUCK = """
import sys
from pathlib import Path
from lesson_lib.ledger import Ledger
from lesson_lib.model import ToolCall
from lesson_lib.sqlite import connect, execute_once
def stuck():
    Ledger(Path(sys.argv[2])).write("called")
    print("running", flush=True)
    sys.stdin.readline()
call = ToolCall("run-1", "k", "lookup", {"code": "x"}, stuck)
execute_once(connect(sys.argv[1]), call, session="s1")
print("saved", flush=True)
"""


def test_who_waits_too_long_is_told_and_nothing_is_called(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    before = rows(database)
    with Child("-c", STUCK, database, ledger.path) as stuck:
        assert stuck.read() == "running"
        end = threading.Timer(3, stuck.tell)  # who waits longer than asked to finds a result
        end.start()
        for wait in (0, 0.1):
            with pytest.raises(KeyBusyError, match=rf"the tool of k for more than {wait} s: ask"):
                once(connection, tool(ledger), wait=wait)
        end.cancel()
        assert (rows(database), ledger.lines()) == (before, ["called"])
        stuck.tell()
        assert stuck.read() == "saved"
    assert once(connection, tool(ledger), wait=0).reused
    assert ledger.lines() == ["called"]


def test_when_a_caller_is_killed_the_next_need_not_wait(
    connection: AgentConnection, database: Path, ledger: Ledger
) -> None:
    with Child("-c", STUCK, database, ledger.path) as stuck:
        assert stuck.read() == "running"
        stuck.kill()
    assert once(connection, tool(ledger), wait=0) == ToolResult("k", "lookup", VALUE, reused=False)
    assert ledger.lines() == ["called"] * 2
    assert kinds(connection) == ["tool_executed"]


def test_a_running_tool_blocks_no_other_key_and_no_checkpoint(
    connection: AgentConnection, database: Path
) -> None:
    def others_work() -> JSONValue:
        with closing(connect(database, timeout=0)) as other:
            for run_id in ("run-1", "run-2"):
                state = load_state(other, run_id)
                save_checkpoint(other, state, Step("look", {}, "look"), session="s2")
                once(other, lambda: "done", run_id=run_id, key=f"{run_id} k", wait=0)
        return "slow"

    assert once(connection, others_work).value == "slow"
    assert kinds(connection, "run-1") == ["checkpoint_saved", "tool_executed", "tool_executed"]
    assert kinds(connection, "run-2") == ["checkpoint_saved", "tool_executed"]


def test_no_lock_file_stays_after_success(connection: AgentConnection, database: Path) -> None:
    locks = database.with_name("agent.db-locks")
    assert once(connection, lambda: len(list(locks.iterdir()))).value == 1
    assert list(locks.iterdir()) == []


def test_a_repeat_needs_no_lock(connection: AgentConnection, database: Path) -> None:
    once(connection, lambda: 1)
    database.with_name("agent.db-locks").rmdir()
    assert once(connection, lambda: 2).value == 1
    assert not database.with_name("agent.db-locks").exists()


def test_without_the_lock_the_loser_still_gets_the_winners_result(
    database: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_only_caller", lambda *_: nullcontext())
    both_inside = threading.Barrier(2)

    def caller(name: str) -> ToolResult:
        def function() -> JSONValue:
            ledger.write(name)
            both_inside.wait()
            return name

        with closing(connect(database)) as own:
            return once(own, function)

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(caller, "ab"))
    assert sorted(ledger.lines()) == ["a", "b"]
    assert sorted(result.reused for result in results) == [False, True]
    (winner,) = (result.value for result in results if not result.reused)
    assert [result.value for result in results] == [winner] * 2
    assert [row[4] for row in rows(database)["tool_effects"]] == [f'"{winner}"']
    with closing(connect(database)) as connection:
        assert kinds(connection) == ["tool_executed", "tool_reused"]


def test_a_run_that_is_gone_when_the_lock_is_there_calls_no_tool(
    connection: AgentConnection, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def long_wait(*_: object) -> Iterator[None]:
        save_checkpoint(
            connection, load_state(connection, "run-1"), Step("look", {}, None), session="s2"
        )
        delete_run(connection, "run-1")
        yield

    monkeypatch.setattr(effects, "_only_caller", long_wait)
    with pytest.raises(UnknownRunError, match="run-1"):
        once(connection, tool(ledger))
    assert ledger.lines() == []


def test_a_result_waits_for_a_file_that_is_locked_longer_than_the_timeout(
    database: Path, tmp_path: Path
) -> None:
    ledger, locked = Ledger(tmp_path / "ledger.txt"), threading.Event()

    def hold_the_file() -> None:
        with closing(connect(database)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked.set()
            time.sleep(0.3)
            other.execute("ROLLBACK")

    def tool() -> JSONValue:
        ledger.write("called")
        holder.start()
        locked.wait(timeout=10)
        return "done"

    call = ToolCall("run-1", "k", "look", None, tool)
    holder = threading.Thread(target=hold_the_file)
    with closing(connect(database, timeout=0.0)) as connection:
        assert execute_once(connection, call, session="s1").value == "done"
        assert execute_once(connection, call, session="s1").reused
    holder.join()
    assert ledger.lines() == ["called"]
