"""The projection follows from the events alone: replays, snapshots, old schemas, and the watch."""

from __future__ import annotations

import copy
import gc
import io
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import new_database

from lesson_lib.errors import ReplayError
from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState
from lesson_lib.patterns.event_schema import CURRENT, NOT_RECORDED, UPCASTERS, LogEvent, upcast
from lesson_lib.patterns.event_sourcing import EVENT_OF, EventSourcing
from lesson_lib.patterns.golden import LOGS, put_golden_log
from lesson_lib.patterns.projection import EVENTS, apply, complaint, merge, project
from lesson_lib.patterns.protocol import Step, after
from lesson_lib.patterns.purity import no_looking_outside
from lesson_lib.stores.sqlite import connect

QUICK = settings(derandomize=True, deadline=None, max_examples=60, database=None)
TICKET = {"area": "sorting", "issue": "belt", "outage_minutes": 45, "safety_impact": False}
RUNBOOK = {"code": "sorting-urgent", "audience": "shift technician", "step": "Stop the belt."}
START = RunState("run-T103", "T103", "running", "find", to_json({"ticket": TICKET}), 0)
FIRST = LogEvent(
    "run-T103",
    1,
    "run_started",
    {"ticket_id": "T103", "next_action": "find", "context": START.context | {}},
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
number = st.integers(-(2**63), 2**63 - 1)
found = st.one_of(
    st.tuples(st.just("classify_priority"), st.fixed_dictionaries({"priority": text})),
    st.tuples(st.just("lookup_runbook"), st.fixed_dictionaries({"runbook": st.just(RUNBOOK)})),
    st.tuples(st.just("draft_reply"), st.fixed_dictionaries({"draft": text})),
    st.tuples(
        st.just("read_page"),
        st.fixed_dictionaries({"cursors": st.dictionaries(text, number, max_size=2)}),
    ),
    st.tuples(
        st.just("find_document"),
        st.fixed_dictionaries({"documents": st.lists(text, max_size=2)}),
    ),
)
histories = st.lists(found, max_size=12)


def event(sequence: int, action: str, payload: JSONObject) -> LogEvent:
    return LogEvent("run-T103", sequence, EVENT_OF[action], payload | {"because": "a test"})


def log_of(history: list[tuple[str, JSONObject]]) -> list[LogEvent]:
    later = [event(n, action, payload) for n, (action, payload) in enumerate(history, 2)]
    return [FIRST, *later]


@QUICK
@given(histories)
def test_a_replay_gives_the_state_that_the_steps_led_to(history: list[Any]) -> None:
    state = START
    for action, payload in history:
        state = after(state, Step(action, payload, "a test", EVENTS[EVENT_OF[action]][1]))
    assert project(log_of(history)) == state
    assert project(log_of(history)) == state, "and again"


@QUICK
@given(histories, st.data())
def test_snapshot_and_tail_give_what_the_whole_log_gives(history: list[Any], data: Any) -> None:
    log = log_of(history)
    cut = data.draw(st.integers(1, len(log)))
    snapshot = project(log[:cut])
    kept = copy.deepcopy(snapshot)
    assert project(log[cut:], snapshot) == project(log)
    assert snapshot == kept


def test_a_list_grows_and_any_other_value_is_replaced() -> None:
    context: JSONObject = {"documents": ["a"], "cursors": {"page": 1}, "priority": "normal"}
    kept = copy.deepcopy(context)
    new = merge(context, {"documents": ["b"], "cursors": {"row": 2}})
    assert new == {"documents": ["a", "b"], "cursors": {"row": 2}, "priority": "normal"}
    assert context == kept


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([], "there is no event to replay"),
        ([replace(FIRST, sequence=2)], "sequence 2 where 1 must follow"),
        ([FIRST, event(3, "read_page", {"cursors": {}})], "sequence 3 where 2 must follow"),
        ([FIRST, replace(FIRST, sequence=1)], "sequence 1 where 2 must follow"),
        ([event(1, "read_page", {"cursors": {}})], "begins with page_read"),
        ([FIRST, LogEvent("run-T103", 2, "run_praised", {})], "run_praised is no event type"),
    ],
)
def test_a_log_that_does_not_fit_is_refused(log: list[LogEvent], problem: str) -> None:
    with pytest.raises(ReplayError, match=problem):
        project(log)


# Old events.

tickets = st.fixed_dictionaries(
    {
        "area": text,
        "issue": text,
        "outage_minutes": st.integers(0, 999),
        "safety_impact": st.booleans(),
    }
)


@QUICK
@given(tickets, st.booleans(), text, st.sampled_from([1, 2]))
def test_old_events_lead_where_todays_lead(
    ticket: JSONObject, urgent: bool, draft: str, version: int
) -> None:
    priority = "urgent" if urgent else "normal"
    classified: tuple[str, JSONObject] = ("priority_set", {"priority": priority})
    if version == 1:
        classified = ("ticket_classified", {"urgent": urgent})
    old: list[tuple[str, JSONObject]] = [
        ("run_started", {"ticket_id": "T103", "ticket": ticket}),
        classified,
        ("runbook_found", {"runbook": RUNBOOK}),
        ("reply_drafted", {"draft": draft}),
        ("run_finished", {"reply": draft}),
    ]
    begin = {"next_action": "classify_priority", "context": {"ticket": ticket}}
    today: list[tuple[str, JSONObject]] = [
        ("run_started", {"ticket_id": "T103"} | begin),
        ("priority_set", {"priority": priority, "because": NOT_RECORDED}),
        *((kind, payload | {"because": NOT_RECORDED}) for kind, payload in old[2:]),
    ]
    kept = copy.deepcopy(old)
    lifted = [upcast(kind, payload, version) for kind, payload in old]
    assert lifted == today
    assert old == kept, "history is only read differently"
    assert project(numbered(lifted)) == project(numbered(today))


def numbered(events: list[tuple[str, JSONObject]]) -> list[LogEvent]:
    return [LogEvent("run-T103", n, *each) for n, each in enumerate(events, 1)]


def test_there_is_one_step_up_from_each_older_version() -> None:
    assert sorted(UPCASTERS) == list(range(1, CURRENT))


@pytest.mark.parametrize("version", [0, -1, CURRENT + 1])
def test_an_event_of_another_schema_is_refused(version: int) -> None:
    with pytest.raises(ReplayError, match=f"schema version {version}, this package knows 1 to"):
        upcast("run_finished", {"reply": ""}, version)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("ticket_classified", {}), ("ticket_classified", {"urgent": "yes"}), ("run_started", {})],
)
def test_an_event_that_is_not_of_its_version_is_refused(kind: str, payload: JSONObject) -> None:
    with pytest.raises(ReplayError, match=f"a {kind} is not one of event schema version 1"):
        upcast(kind, payload, 1)


def test_golden_logs_of_every_version_load(tmp_path: Path) -> None:
    paths = sorted(LOGS.glob("*.json"))
    versions = set()
    with closing(connect(new_database(tmp_path))) as connection:
        pattern = EventSourcing(connection, "session-1")
        for path in paths:
            context = put_golden_log(connection, path.stem, path)
            state = pattern.load(path.stem)
            assert (dict(state.context), state.status, state.version) == (context, "completed", 4)
            assert put_golden_log(connection, path.stem, path) == context, "and again"
        rows = connection.execute("SELECT DISTINCT event_schema FROM run_log").fetchall()
        versions = {row["event_schema"] for row in rows}
    assert versions == set(range(1, CURRENT + 1))
    assert {f"version_{n}" for n in versions} < {path.stem for path in paths}


# The watch.


def look_at_file() -> None:
    with open(__file__):  # noqa: PTH123
        pass


IMPURE: dict[str, Callable[[], object]] = {
    "datetime.now": lambda: datetime.now(UTC),
    "date.today": date.today,
    "time": time.time,
    "monotonic": time.monotonic,
    "Random.random": random.random,
    "Random.getrandbits": lambda: random.choice([1, 2]),
    "urandom": lambda: os.urandom(4),
    "urandom ": uuid.uuid4,
    "open": look_at_file,
}


@pytest.mark.parametrize("name", IMPURE)
def test_a_replay_that_looks_outside_is_caught(name: str) -> None:
    def impure(state: RunState | None, happened: LogEvent) -> RunState:
        IMPURE[name]()
        return apply(state, happened)

    with (
        pytest.raises(ReplayError, match=f"the replay called {name.strip()}: "),
        no_looking_outside(),
    ):
        project([FIRST], apply=impure)
    assert complaint([FIRST], impure) == f"the replay called {name.strip()}"
    assert complaint([FIRST], apply) is None
    IMPURE[name]()  # the watch is over


def test_who_looked_outside_and_hid_it_is_caught(tmp_path: Path) -> None:
    def hides(state: RunState | None, happened: LogEvent) -> RunState:
        with suppress(Exception):
            time.time()
        return apply(state, happened)

    assert complaint([FIRST], hides) == "the replay called time"


def test_text_in_memory_and_names_of_files_are_not_outside() -> None:
    with no_looking_outside():
        io.StringIO().write("a line")
        os.path.join("a", "b")  # noqa: PTH118


def test_the_watch_sees_no_finaliser_of_others() -> None:
    class Other:
        def __del__(self) -> None:
            time.time()

    for _ in range(3):
        circle: list[Any] = [Other()]
        circle.append(circle)
        del circle
        with no_looking_outside():
            assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("payload", [{}, {"priority": "urgent"}, [], None])
def test_a_payload_that_is_not_of_its_type_is_refused(payload: Any) -> None:
    with pytest.raises(ReplayError, match="event 2 of run-T103 is no page_read"):
        project([FIRST, LogEvent("run-T103", 2, "page_read", payload)])


def test_a_tool_is_stopped_before_it_does_anything(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.txt")
    with pytest.raises(ReplayError, match="called open"), no_looking_outside():
        ledger.write("page")
    assert ledger.lines() == []


def test_a_database_is_not_asked(tmp_path: Path) -> None:
    with closing(connect(new_database(tmp_path))) as connection:
        with pytest.raises(ReplayError), no_looking_outside():
            connection.execute("SELECT 1")
        assert connection.execute("SELECT 1").fetchone()[0] == 1


def test_the_watch_gives_back_the_profiler_it_found() -> None:
    def mine(frame: FrameType, kind: str, value: Any) -> None: ...

    before = sys.getprofile()
    sys.setprofile(mine)
    try:
        project([FIRST])
        with pytest.raises(ReplayError), no_looking_outside():
            time.time()
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)
