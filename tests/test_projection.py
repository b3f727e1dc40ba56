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
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lesson_lib.errors import ReplayError
from lesson_lib.json_text import JSONObject
from lesson_lib.labs.four_patterns.golden_logs import LOGS, put_golden_log
from lesson_lib.labs.four_patterns.long_runs import ACTIONS, lab_agent
from lesson_lib.labs.four_patterns.purity import complaint, no_looking_outside
from lesson_lib.labs.four_patterns.stores import open_store
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.log import LogEvent, create_log
from lesson_lib.patterns.projection import Projection
from lesson_lib.sqlite import AgentConnection
from lesson_lib.tickets.log_schema import NOT_RECORDED, UPCASTERS

QUICK = settings(derandomize=True, deadline=None, max_examples=60, database=None)
TICKET = {"area": "sorting", "issue": "belt", "outage_minutes": 45, "safety_impact": False}
RUNBOOK = {"code": "sorting-urgent", "audience": "shift technician", "step": "Stop the belt."}
START = RunState.begin("run-T103", "T103", "find", {"ticket": TICKET})
PROJECTION = Projection(lab_agent)
apply, FIRST = PROJECTION.apply, PROJECTION.first(START)

text = st.text(st.characters(codec="utf-8"), max_size=20)
number = st.integers(-(2**63), 2**63 - 1)
cursors = st.dictionaries(text, number, max_size=2)
documents = st.lists(text, max_size=2)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Make a step that does what its action says, or anything else."""
    name = draw(st.sampled_from([*ACTIONS]))
    action = ACTIONS[name]
    found: JSONObject = {action.makes: draw(text | documents | cursors)}
    if draw(st.booleans()):
        return Step(name, found, action.next_action or "again", draw(text))
    others = st.sampled_from(["documents", "cursors", "draft", "found", "appended", "next_action"])
    found = draw(st.just(found) | st.dictionaries(others, text | documents, max_size=2))
    grown = {"pages": draw(documents)} if draw(st.booleans()) else {}
    return Step(name, found, draw(st.sampled_from([*ACTIONS])), draw(text), grown)


def project(
    events: list[LogEvent],
    apply: Callable[[RunState | None, LogEvent], RunState] = PROJECTION.apply,
    state: RunState | None = None,
) -> RunState:
    for event in events:
        state = apply(state, event)
    assert state is not None
    return state


histories = st.lists(steps(), max_size=12)


def log_of(history: list[Step]) -> list[LogEvent]:
    log, state = [FIRST], START
    for step in history:
        log.append(PROJECTION.event(state, step))
        state = state.after(step)
    return log


def event(sequence: int, event_type: str, **payload: Any) -> LogEvent:
    return LogEvent("run-T103", sequence, event_type, payload | {"because": "a test"})


@QUICK
@given(histories)
def test_a_replay_gives_the_state_that_the_steps_led_to(history: list[Step]) -> None:
    state = START
    for step in history:
        state = state.after(step)
    assert project(log_of(history), apply) == state
    assert project(log_of(history), apply) == state, "and again"


@QUICK
@given(steps())
def test_an_event_gives_back_the_whole_step(step: Step) -> None:
    assert PROJECTION.step(PROJECTION.event(START, step)) == step


@QUICK
@given(histories, st.data())
def test_snapshot_and_tail_give_what_the_whole_log_gives(history: list[Step], data: Any) -> None:
    log = log_of(history)
    cut = data.draw(st.integers(1, len(log)))
    snapshot = project(log[:cut], apply)
    kept = copy.deepcopy(snapshot)
    assert project(log[cut:], apply, snapshot) == project(log, apply)
    assert snapshot == kept


def test_a_plain_step_is_told_by_what_it_found_and_any_other_in_full() -> None:
    plain = Step("classify_priority", {"priority": "urgent"}, "lookup_runbook", "a test")
    assert PROJECTION.event(START, plain) == event(2, "priority_set", priority="urgent")
    grown = Step("find_document", {}, "find_document", "a test", {"documents": ["a"]})
    whole: JSONObject = {"action": "find_document", "found": {}, "next_action": "find_document"}
    told = event(2, "step_taken", **whole, appended={"documents": ["a"]})
    assert PROJECTION.event(START, grown) == told


def test_a_step_of_no_known_action_is_told_in_full() -> None:
    step = Step("praise", {"priority": "urgent"}, None, "a test")
    told = PROJECTION.event(START, step)
    assert (told.event_type, PROJECTION.step(told)) == ("step_taken", step)


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([replace(FIRST, sequence=2)], "sequence 2 where 1 must follow"),
        ([FIRST, event(3, "page_read", cursors={})], "sequence 3 where 2 must follow"),
        ([FIRST, replace(FIRST, sequence=1)], "sequence 1 where 2 must follow"),
        ([event(1, "page_read", cursors={})], "begins with page_read"),
        ([FIRST, event(2, "run_praised")], "run_praised is no event type"),
        ([FIRST, event(2, "run_finished", reply=""), event(3, "page_read", cursors={})], "event 3"),
        ([replace(FIRST, payload=FIRST.payload | {"context": [1]})], "event 1"),
        ([replace(FIRST, payload=FIRST.payload | {"ticket_id": 103})], "event 1"),
    ],
)
def test_a_log_that_does_not_fit_is_refused(log: list[LogEvent], problem: str) -> None:
    with pytest.raises(ReplayError, match=problem):
        project(log, apply)


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
    lifted = [reduce(lambda told, up: up(*told), UPCASTERS[version - 1 :], each) for each in old]
    assert lifted == today
    assert old == kept, "history is only read differently"
    assert project(numbered(lifted), apply) == project(numbered(today), apply)


def numbered(events: list[tuple[str, JSONObject]]) -> list[LogEvent]:
    return [LogEvent("run-T103", n, *each) for n, each in enumerate(events, 1)]


def put(connection: AgentConnection, event_schema: int, *event: object) -> EventSourcing:
    """Append an event to a run of a log, unseen by its store."""
    create_log(connection)
    store = EventSourcing(connection, "session-1", agent=lab_agent, upcasters=UPCASTERS)
    store.start_run(START)
    connection.execute(
        "INSERT INTO run_log VALUES (?, 2, ?, ?, ?)", ("run-T103", event_schema, *event)
    )
    return store


def test_an_event_of_a_newer_schema_is_refused(connection: AgentConnection) -> None:
    store = put(connection, 4, "run_finished", '{"reply": "", "because": ""}')
    with pytest.raises(ReplayError, match="schema version 4, this package knows 1 to 3"):
        store.load_state("run-T103")


def test_a_log_without_older_versions_is_at_version_1(connection: AgentConnection) -> None:
    store = put(connection, 1, "page_read", '{"cursors": {}, "because": ""}')
    assert (store.event_schema, replace(store, upcasters=()).event_schema) == (3, 1)
    assert replace(store, upcasters=()).read_log("run-T103", after=1) == [
        LogEvent("run-T103", 2, "page_read", {"cursors": {}, "because": ""})
    ]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("ticket_classified", "{}"),
        ("ticket_classified", '{"urgent": "yes"}'),
        ("run_started", "{}"),
    ],
)
def test_an_event_that_is_not_of_its_version_is_refused(
    kind: str, payload: str, connection: AgentConnection
) -> None:
    store = put(connection, 1, kind, payload)
    with pytest.raises(ReplayError, match=f"event 2 of run-T103 is no {kind} of schema version 1"):
        store.load_state("run-T103")


def test_golden_logs_of_every_version_load(connection: AgentConnection) -> None:
    paths = sorted(LOGS.glob("*.json"))
    store = open_store(connection, "event sourcing", "session-1")
    for path in paths:
        context = put_golden_log(connection, path.stem, path)
        state = store.load_state(path.stem)
        assert (dict(state.context), state.status, state.version) == (context, "completed", 4)
        assert put_golden_log(connection, path.stem, path) == context, "and again"
    rows = connection.execute("SELECT DISTINCT event_schema FROM run_log").fetchall()
    versions = {row["event_schema"] for row in rows}
    assert versions == set(range(1, len(UPCASTERS) + 2))
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
        project([FIRST], impure)
    assert complaint([FIRST], impure) == f"the replay called {name.strip()}"
    assert complaint([FIRST], apply) is None
    IMPURE[name]()  # the watch is over


def test_who_looked_outside_and_hid_it_is_caught() -> None:
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


WHOLE: JSONObject = {"action": "praise", "found": {}, "next_action": "read_page"}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("page_read", {}),
        ("page_read", {"cursors": {}}),
        ("page_read", {"because": ""}),
        ("page_read", []),
        ("page_read", None),
        ("step_taken", {}),
        ("step_taken", []),
        ("step_taken", {"found": {}}),
        ("step_taken", WHOLE | {"found": [1]}),
        ("step_taken", WHOLE | {"appended": 1}),
        ("step_taken", WHOLE | {"appended": [1]}),
        ("step_taken", WHOLE | {"appended": {"cursors": 1}}),
    ],
    ids=str,
)
def test_a_payload_that_is_not_of_its_type_is_refused(kind: str, payload: Any) -> None:
    with pytest.raises(ReplayError, match=f"event 2 of run-T103 is no {kind}"):
        project([FIRST, LogEvent("run-T103", 2, kind, payload)], apply)


def test_a_tool_is_stopped_before_it_does_anything(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.txt")
    with pytest.raises(ReplayError, match="called open"), no_looking_outside():
        ledger.write("page")
    assert ledger.lines() == []


def test_a_database_is_not_asked(connection: AgentConnection) -> None:
    with pytest.raises(ReplayError), no_looking_outside():
        connection.execute("SELECT 1")
    assert connection.execute("SELECT 1").fetchone()[0] == 1


def test_the_watch_gives_back_the_profiler_it_found() -> None:
    def mine(frame: FrameType, kind: str, value: Any) -> None: ...

    before = sys.getprofile()
    sys.setprofile(mine)
    try:
        project([FIRST], apply)
        with pytest.raises(ReplayError), no_looking_outside():
            time.time()
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)
