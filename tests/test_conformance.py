"""Every store is held to the promises of `StateStore`; what a toy cannot keep must fail here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import conformance
import pytest
from conformance import STORES, Open

from lesson_lib.errors import (
    IdempotencyConflictError,
    InvalidStateError,
    JSONValueError,
    RunCompletedError,
    RunExistsError,
    StaleVersionError,
    UnknownRunError,
)
from lesson_lib.json_text import from_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import Event, RunState, Step, ToolCall
from lesson_lib.processes import ChildEnd, run_child, together
from lesson_lib.store import Rider, Saving, StateStore

LOOK = Step("look", {"n": 1}, "look")
REPLY = "Priority: urgent. Next step: Check the gateway heartbeat, then ask a technician"
POINTS = [
    f"{action}:{point}"
    for action in ("classify_priority", "lookup_runbook", "draft_reply", "finish")
    for point in ("begin", "tool_ran", "before_checkpoint", "checkpoint_saved")
    if point != "tool_ran" or action in ("lookup_runbook", "draft_reply")
]
SAMPLE = ("lookup_runbook:tool_ran", "lookup_runbook:before_checkpoint", "finish:checkpoint_saved")


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    """Name a store; one that cannot keep this test's promise must fail it."""
    chosen: str = request.param
    promise = request.node.get_closest_marker("promise")
    if promise is not None and promise.args[0] in STORES[chosen][1]:
        request.applymarker(pytest.mark.xfail(strict=True, reason=promise.args[0]))
    return chosen


@pytest.fixture
def opened(name: str) -> Open:
    return STORES[name][0]


@pytest.fixture
def store(opened: Open, tmp_path: Path) -> Iterator[StateStore]:
    with opened(tmp_path, "session-1") as one:
        yield one


def start(store: StateStore, run_id: str = "run-1") -> RunState:
    return store.start_run(RunState.begin(run_id, "T1", "look", {"n": 0}))


def told(store: StateStore, run_id: str = "run-1") -> list[tuple[Any, ...]]:
    events = store.read_events(run_id)
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
    return [(e.session, e.event_type, e.action, from_json(e.detail)) for e in events]


def everything(store: StateStore) -> tuple[RunState, list[Event], list[str]]:
    return store.load_state("run-1"), store.read_events("run-1"), store.unfinished_runs()


# What is kept comes back.


def test_a_started_run_is_there_with_its_event(store: StateStore) -> None:
    state = start(store)
    assert state == RunState("run-1", "T1", "running", "look", '{"n": 0}', 0)
    assert store.load_state("run-1") == state
    assert told(store) == [("session-1", "run_started", "start", {})]
    assert store.unfinished_runs() == ["run-1"]


def test_a_checkpoint_is_one_version_on_with_its_event(store: StateStore) -> None:
    saved = store.save_checkpoint(start(store), Step("look", {"m": 1}, "draft"))
    assert saved == RunState("run-1", "T1", "running", "draft", '{"m": 1, "n": 0}', 1)
    assert store.load_state("run-1") == saved
    assert told(store)[1:] == [("session-1", "checkpoint_saved", "look", {"version": 1})]


def test_no_next_action_completes_a_run_for_good(store: StateStore) -> None:
    end = store.save_checkpoint(start(store), Step("look", {}, None))
    assert (end.status, store.unfinished_runs()) == ("completed", [])
    before = everything(store)
    with pytest.raises(RunCompletedError):
        store.save_checkpoint(end, LOOK)
    assert everything(store) == before


def test_appended_lists_grow(store: StateStore) -> None:
    state = start(store)
    for page in ("a", "b"):
        state = store.save_checkpoint(state, Step("look", {}, "look", appended={"read": [page]}))
    assert store.load_state("run-1").context["read"] == ["a", "b"]


def test_events_of_one_run_stay_in_order_and_apart_from_others(store: StateStore) -> None:
    for run_id in ("run-2", "run-1", "run-10"):
        start(store, run_id)
    store.record_event("run-1", "noted", "look", {"b": [1], "a": None})
    store.record_event("run-2", "noted", "look")
    assert told(store)[1:] == [("session-1", "noted", "look", {"a": None, "b": [1]})]
    assert told(store, "run-2")[1:] == [("session-1", "noted", "look", {})]
    assert store.unfinished_runs() == ["run-1", "run-10", "run-2"]


@pytest.mark.parametrize(
    "text", ["../../x", "a:b", "*", "a\nb", "it's", "ключ 🔥", "a\x00b", "x" * 200], ids=ascii
)
def test_a_name_is_a_name_whatever_it_says(store: StateStore, text: str) -> None:
    state = store.start_run(RunState.begin(text, text, text, {text: text}))
    saved = store.save_checkpoint(state, Step(text, {text: [text]}, text))
    assert store.load_state(text) == saved
    call = ToolCall(text, f"{text}:key", text, {text: text}, lambda: {text: text})
    assert store.execute_once(call).value == store.execute_once(call).value == {text: text}
    assert len(told(store, text)) == 4


def test_five_megabytes_come_back(store: StateStore) -> None:
    text = "é" * 2_500_000
    saved = store.save_checkpoint(start(store), Step("look", {"text": text}, "look"))
    assert store.load_state("run-1") == saved
    assert saved.context["text"] == text


# Refused, and nothing changed.


def test_a_run_cannot_be_started_twice(store: StateStore) -> None:
    store.save_checkpoint(start(store), LOOK)
    before = everything(store)
    with pytest.raises(RunExistsError):
        start(store)
    assert everything(store) == before


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_writer_with_another_version_is_refused(store: StateStore, version: int) -> None:
    state = start(store)
    for _ in range(2):
        state = store.save_checkpoint(state, LOOK)
    before = everything(store)
    with pytest.raises(StaleVersionError):
        store.save_checkpoint(replace(state, version=version), Step("look", {"n": 9}, "look"))
    assert everything(store) == before


def test_of_two_sessions_at_one_version_the_second_is_refused(
    store: StateStore, opened: Open, tmp_path: Path
) -> None:
    mine = start(store)
    with opened(tmp_path, "session-2") as other:
        theirs = other.load_state("run-1")
        saved = store.save_checkpoint(mine, LOOK)
        with pytest.raises(StaleVersionError):
            other.save_checkpoint(theirs, Step("look", {"n": 2}, "look"))
        assert other.load_state("run-1") == saved
        other.record_event("run-1", "noted", "look")
    assert [who for who, *_ in told(store)] == ["session-1", "session-1", "session-2"]


UNKNOWN: dict[str, Callable[[StateStore, Callable[[], Any]], object]] = {
    "load_state": lambda s, _: s.load_state("run-9"),
    "read_events": lambda s, _: s.read_events("run-9"),
    "save_checkpoint": lambda s, _: s.save_checkpoint(
        RunState("run-9", "T1", "running", "look", "{}", 0), LOOK
    ),
    "record_event": lambda s, _: s.record_event("run-9", "noted", "look"),
    "execute_once": lambda s, tool: s.execute_once(ToolCall("run-9", "k", "t", None, tool)),
}


@pytest.mark.parametrize("ask", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_run_is_named_and_no_tool_is_called(
    store: StateStore, ask: Callable[[StateStore, Callable[[], Any]], object]
) -> None:
    start(store)
    before, called = everything(store), list[int]()
    with pytest.raises(UnknownRunError, match="run-9"):
        ask(store, lambda: called.append(1))
    assert (everything(store), called) == (before, [])


@dataclass(frozen=True)
class Noting(Rider):
    """Notes that it rode."""

    rode: list[int] = field(default_factory=list)

    def write(self, connection: Any, saving: Saving) -> None:
        self.rode.append(saving.after.version)


def test_a_rider_rides_or_is_refused(store: StateStore) -> None:
    state, rider = start(store), Noting()
    before = everything(store)
    try:
        store.save_checkpoint(state, replace(LOOK, riders=(rider,)))
    except InvalidStateError:
        assert (everything(store), rider.rode) == (before, [])
    else:
        if hasattr(store, "flush"):
            store.flush()
        assert rider.rode == [1]


def test_what_would_not_survive_json_is_refused(store: StateStore) -> None:
    state = start(store)
    before = everything(store)
    for value in (float("nan"), (1, 2), {1: 2}, {1}):
        with pytest.raises(JSONValueError, match=r"^context\.seen"):
            store.save_checkpoint(state, Step("look", {"seen": value}, "look"))
    assert everything(store) == before


# A tool is called once per key.


def test_a_repeat_gets_the_saved_result(store: StateStore, opened: Open, tmp_path: Path) -> None:
    start(store)
    called: list[int] = []
    call = ToolCall("run-1", "k", "lookup", {"code": "x"}, lambda: called.append(1))
    first = store.execute_once(call)
    with opened(tmp_path, "session-2") as other:
        second = other.execute_once(call)
    assert (first.value, first.reused, second.value, second.reused) == (None, False, None, True)
    assert called == [1]
    assert told(store)[1:] == [
        ("session-1", "tool_executed", "lookup", {"key": "k"}),
        ("session-2", "tool_reused", "lookup", {"key": "k"}),
    ]


@pytest.mark.parametrize(
    "changed",
    [{"tool_input": 2}, {"tool_name": "other"}, {"run_id": "run-2"}],
    ids=["input", "tool", "run"],
)
def test_a_key_with_another_intention_is_a_conflict(
    store: StateStore, changed: dict[str, Any]
) -> None:
    start(store)
    start(store, "run-2")
    call = ToolCall("run-1", "k", "lookup", 1, lambda: "first")
    store.execute_once(call)
    before, called = everything(store), list[int]()
    with pytest.raises(IdempotencyConflictError, match="k"):
        store.execute_once(replace(call, function=lambda: called.append(1), **changed))
    assert (everything(store), called) == (before, [])


def test_a_tool_that_fails_leaves_nothing_and_is_tried_again(store: StateStore) -> None:
    start(store)
    before = everything(store)
    with pytest.raises(ZeroDivisionError):
        store.execute_once(ToolCall("run-1", "k", "t", None, lambda: 1 // 0))
    assert everything(store) == before
    assert not store.execute_once(ToolCall("run-1", "k", "t", None, lambda: 1)).reused


@pytest.mark.promise("two callers of one key")
def test_two_callers_of_one_key_at_one_moment_call_the_tool_once(
    store: StateStore, opened: Open, tmp_path: Path
) -> None:
    start(store)
    ledger, both_here = Ledger(tmp_path / "ledger.txt"), threading.Barrier(2)

    def slow() -> str:
        ledger.write("called")
        time.sleep(0.02)
        return "done"

    def caller(session: str) -> Any:
        with opened(tmp_path, session) as own:
            both_here.wait()
            return own.execute_once(ToolCall("run-1", "k", "t", None, slow)).value

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(caller, ("session-2", "session-3"))) == ["done"] * 2
    assert ledger.lines() == ["called"]


# Several processes, and death.


def process(name: str, folder: Path, session: str, task: str) -> list[str]:
    code = "import sys; sys.path[:0] = sys.argv.pop().split(':'); import conformance as c; c.main()"
    tests = str(Path(conformance.__file__).parent)
    return ["-c", code, name, str(folder), session, task, tests]


def live(name: str, folder: Path, session: str, task: str = "live") -> ChildEnd:
    return run_child(process(name, folder, session, task))


@pytest.mark.promise("another process finds it")
def test_what_one_process_kept_another_finds(
    name: str, opened: Open, store: StateStore, tmp_path: Path
) -> None:
    assert live(name, tmp_path, "session-2").printed.startswith(REPLY)
    end = store.load_state("run-T104")
    assert (end.status, end.version) == ("completed", 4)


@pytest.mark.promise("another process finds it")
@pytest.mark.parametrize(
    "point", [p if p in SAMPLE else pytest.param(p, marks=pytest.mark.prove) for p in POINTS]
)
def test_a_run_goes_on_after_a_death_at_any_point(
    name: str, opened: Open, tmp_path: Path, point: str
) -> None:
    assert live(name, tmp_path, "session-1", point).ended == "died without cleanup"
    assert live(name, tmp_path, "session-2").printed.startswith(REPLY)
    calls = Ledger(tmp_path / "ledger.txt").lines()
    ran_twice = [f"run-T104:{point.split(':')[0]}"] if point.endswith(":tool_ran") else []
    assert sorted(calls) == sorted(["run-T104:lookup_runbook", "run-T104:draft_reply", *ran_twice])
    with opened(tmp_path, "a look") as store:
        saved = [
            detail["version"]
            for _, kind, _, detail in told(store, "run-T104")
            if kind == "checkpoint_saved"
        ]
        assert saved == [1, 2, 3, 4]


@pytest.mark.promise("racing processes")
def test_racing_processes_lose_no_checkpoint(
    name: str, opened: Open, store: StateStore, tmp_path: Path
) -> None:
    start(store)
    together([process(name, tmp_path, f"session-{n}", "race") for n in range(3)])
    state = store.load_state("run-1")
    assert (state.version, state.context["n"]) == (30, 30)
    saved = [detail["version"] for _, kind, _, detail in told(store) if kind == "checkpoint_saved"]
    assert saved == [*range(1, 31)]
