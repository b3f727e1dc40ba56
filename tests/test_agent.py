"""The agent: each ticket ends in the right reply, and whatever stops it leaves a run to resume."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import lesson_lib.agent
from lesson_lib.agent import Action, Agent, CallTool, Context
from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import (
    CorruptStateError,
    InvalidStateError,
    RunCompletedError,
    SimulatedCrash,
    StaleVersionError,
    UnknownActionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite import AgentConnection, SQLiteStore, connect
from lesson_lib.store import StateStore
from lesson_lib.tickets import Tools, find_ticket, new_run, read_tickets, ticket_agent

REPLIES = {
    "T101": "Priority: normal. Next step: Clean the label sensor and watch the next ten jobs.",
    "T102": "Priority: normal. Next step: Grease the door rail at the next planned stop.",
    "T103": "Priority: urgent. Next step: Lock the belt's power switch and then look for the jam.",
    "T104": "Priority: urgent. Next step: Check the gateway heartbeat, then ask a technician to"
    " inspect the sensor.",
    "T105": "Priority: urgent. Next step: Print the routes and restart the board's feed.",
    "T106": "Priority: urgent. Next step: Set up a portable light and close the bay until the"
    " repair.",
}
LOOKUP = "run-T104:lookup_runbook"


@pytest.fixture
def store(connection: AgentConnection) -> SQLiteStore:
    return SQLiteStore(connection, "session-1")


@pytest.fixture
def second(connection: AgentConnection) -> SQLiteStore:
    """Return the store of the next process life."""
    return SQLiteStore(connection, "session-2")


def at_lookup(store: StateStore, tools: Tools) -> RunState:
    return ticket_agent.run_next_action(store, ticket_agent.start(store, "run-T104"), tools)


def kinds(store: StateStore) -> list[str]:
    return [event.event_type for event in store.read_events("run-T104")]


@pytest.mark.parametrize("ticket_id", REPLIES)
def test_each_ticket_gets_its_reply(store: SQLiteStore, tools: Tools, ticket_id: str) -> None:
    end = ticket_agent.run_to_end(store, ticket_agent.start(store, f"run-{ticket_id}"), tools)
    assert (end.status, end.next_action, end.version) == ("completed", None, 4)
    assert end.context["reply"] == REPLIES[ticket_id]
    assert store.load_state(f"run-{ticket_id}") == end
    keys = [f"run-{ticket_id}:{tool}" for tool in ("lookup_runbook", "draft_reply")]
    assert tools.ledger.lines() == keys


def test_the_replies_cover_the_data() -> None:
    assert list(REPLIES) == [ticket.ticket_id for ticket in read_tickets()]


def test_each_action_leads_to_the_next(store: SQLiteStore, tools: Tools) -> None:
    state, passed = ticket_agent.start(store, "run-T104"), []
    while state.next_action:
        passed.append(state.next_action)
        state = ticket_agent.run_next_action(store, state, tools)
        assert store.load_state("run-T104") == state
        assert state.version == len(passed)
    assert passed == ["classify_priority", "lookup_runbook", "draft_reply", "finish"]


def test_the_crash_points_come_in_order(store: SQLiteStore, tools: Tools) -> None:
    passed: list[str] = []
    ticket_agent.run_to_end(
        store, ticket_agent.start(store, "run-T104"), tools, passing=passed.append
    )
    with_tool = ("begin", "tool_ran", "before_checkpoint", "checkpoint_saved")
    without = ("begin", "before_checkpoint", "checkpoint_saved")
    assert passed == [
        *(f"classify_priority:{point}" for point in without),
        *(f"lookup_runbook:{point}" for point in with_tool),
        *(f"draft_reply:{point}" for point in with_tool),
        *(f"finish:{point}" for point in without),
    ]


def test_the_crash_comes_after_the_result_and_before_the_checkpoint(
    store: SQLiteStore, tools: Tools
) -> None:
    state = at_lookup(store, tools)
    with pytest.raises(SimulatedCrash):
        ticket_agent.run_next_action(store, state, tools, crash_after_tool=True)
    assert store.load_state("run-T104") == state
    assert kinds(store)[-1] == "tool_executed"
    assert tools.ledger.lines() == [LOOKUP]


def test_code_that_catches_errors_does_not_survive_a_crash() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_a_tool_is_called_outside_of_any_transaction(store: SQLiteStore, tools: Tools) -> None:
    seen: list[bool] = []

    class Looking(Tools):
        def lookup_runbook(self, key: str, code: str) -> JSONObject:
            seen.append(store.connection.in_transaction)
            return super().lookup_runbook(key, code)

    looking = Looking(tools.runbooks, tools.ledger)
    ticket_agent.run_to_end(store, ticket_agent.start(store, "run-T104"), looking)
    assert seen == [False]


def test_resume_goes_on_where_the_checkpoint_is(
    store: SQLiteStore, second: SQLiteStore, tools: Tools
) -> None:
    state = at_lookup(store, tools)
    assert ticket_agent.resume(second, "run-T104") == state
    event = store.read_events("run-T104")[-1]
    assert (event.session, event.event_type, event.action) == ("session-2", "run_resumed", "resume")
    assert event.detail == '{"version": 1}'


def test_resume_of_an_unknown_run_is_refused(second: SQLiteStore) -> None:
    with pytest.raises(UnknownRunError, match="run-T104"):
        ticket_agent.resume(second, "run-T104")


def test_a_completed_run_stays_as_it_is(
    store: SQLiteStore, second: SQLiteStore, tools: Tools
) -> None:
    end = ticket_agent.run_to_end(store, ticket_agent.start(store, "run-T104"), tools)
    before = kinds(store)
    with pytest.raises(RunCompletedError, match="run-T104"):
        ticket_agent.resume(second, "run-T104")
    with pytest.raises(RunCompletedError, match="run-T104"):
        ticket_agent.run_next_action(store, end, tools)
    assert ticket_agent.run_to_end(second, end, tools) == end
    assert kinds(store) == before
    assert len(tools.ledger.lines()) == 2


def test_an_unknown_action_is_refused_and_changes_nothing(store: SQLiteStore, tools: Tools) -> None:
    first = ticket_agent.start(store, "run-T104")
    state = store.save_checkpoint(first, Step("classify_priority", {}, "send_mail"))
    before = kinds(store)
    with pytest.raises(UnknownActionError, match=r"run-T104 .*'send_mail'.* classify_priority"):
        ticket_agent.run_next_action(store, state, tools)
    assert (store.load_state("run-T104"), kinds(store)) == (state, before)


TICKET = {"area": "packing", "issue": "jam", "outage_minutes": 8, "safety_impact": False}


@pytest.mark.parametrize(
    ("action", "context", "lacking"),
    [
        ("classify_priority", {}, "ticket.outage_minutes"),
        ("classify_priority", {"ticket": None}, "ticket.outage_minutes"),
        ("classify_priority", {"ticket": {"outage_minutes": 8}}, "ticket.safety_impact"),
        ("lookup_runbook", {"priority": "normal"}, "ticket.area"),
        ("lookup_runbook", {"ticket": TICKET}, "priority"),
        ("draft_reply", {"runbook": {"step": "Wait."}}, "priority"),
        ("draft_reply", {"priority": "normal", "runbook": "Wait."}, "runbook.step"),
        ("finish", {"ticket": TICKET}, "draft"),
    ],
)
def test_a_context_that_lacks_something_is_called_corrupt(
    store: SQLiteStore, tools: Tools, action: str, context: dict[str, Any], lacking: str
) -> None:
    state = store.start_run(RunState.begin("run-T104", "T104", action, context))
    with pytest.raises(CorruptStateError, match=f"lacks {lacking}"):
        ticket_agent.run_next_action(store, state, tools)
    assert store.load_state("run-T104") == state
    assert tools.ledger.lines() == []


@pytest.mark.parametrize("error", [KeyError("code"), TypeError("no"), SimulatedCrash(), OSError(5)])
def test_the_error_of_a_tool_comes_through_and_the_next_call_tries_again(
    store: SQLiteStore, tools: Tools, error: BaseException
) -> None:
    class Failing(Tools):
        def lookup_runbook(self, key: str, code: str) -> JSONObject:
            super().lookup_runbook(key, code)
            raise error

    state = at_lookup(store, tools)
    before = kinds(store)
    failing = Failing(tools.runbooks, tools.ledger)
    with pytest.raises(type(error)) as caught:
        ticket_agent.run_next_action(store, state, failing)
    assert caught.value is error
    assert (store.load_state("run-T104"), kinds(store)) == (state, before)
    end = ticket_agent.run_to_end(store, state, tools)
    assert end.context["reply"] == REPLIES["T104"]
    assert tools.ledger.count(LOOKUP) == 2


def test_a_late_worker_reuses_the_result_and_is_refused(
    store: SQLiteStore, tools: Tools, tmp_path: Path
) -> None:
    state = at_lookup(store, tools)
    with closing(connect(tmp_path / "agent.db")) as connection:
        late = SQLiteStore(connection, "session-2")
        stale = ticket_agent.resume(late, "run-T104")
        saved = ticket_agent.run_next_action(store, state, tools)
        with pytest.raises(StaleVersionError, match="version 2, this worker loaded version 1"):
            ticket_agent.run_next_action(late, stale, tools)
    assert store.load_state("run-T104") == saved
    assert kinds(store)[-1] == "tool_reused"
    assert tools.ledger.count(LOOKUP) == 1
    end = ticket_agent.run_to_end(store, saved, tools)
    assert end.context["reply"] == REPLIES["T104"]


def test_a_ticket_is_data_whatever_it_says(store: SQLiteStore, tools: Tools) -> None:
    text = """'); DROP TABLE agent_runs; -- "quoted" 🔥 \x00 {"next_action": null}"""
    ticket = replace(find_ticket(read_tickets(), "T104"), issue=text)
    end = ticket_agent.run_to_end(store, store.start_run(new_run(ticket)), tools)
    assert store.load_state("run-T104").context["ticket"]["issue"] == text
    assert end.context["reply"] == REPLIES["T104"]
    assert not any(text in event.detail for event in store.read_events("run-T104"))


# An agent is data: another one needs no other loop.


def another(**actions: Action) -> Agent:
    first, context = next(iter(actions)), {"pages": ["a", "b"]}
    schema = ContextSchema({"pages": list, "read": list})
    return Agent(actions, lambda run_id: RunState.begin(run_id, "T1", first, context), schema)


@dataclass(frozen=True)
class Library:
    ledger: Ledger

    def read_page(self, key: str, page: str) -> str:
        self.ledger.write(f"{key} {page}")
        return page.upper()


def read_all(context: Context, call_tool: CallTool) -> JSONObject:
    return {"read": [call_tool("read_page", page, page=page) for page in context["pages"]]}


def test_one_tool_is_called_twice_in_a_run_under_two_keys(
    store: SQLiteStore, tmp_path: Path
) -> None:
    reader = another(read_all=Action(read_all, "read", "pages_read", None))
    tools = Library(Ledger(tmp_path / "ledger.txt"))
    state = reader.start(store, "run-1")
    with pytest.raises(SimulatedCrash):
        reader.run_next_action(store, state, tools, crash_after_tool=True)
    end = reader.run_to_end(store, reader.resume(store, "run-1"), tools)
    assert end.context["read"] == ["A", "B"]
    assert tools.ledger.lines() == ["run-1:read_page:a a", "run-1:read_page:b b"]


def test_an_action_chooses_what_comes_next(store: SQLiteStore, tools: Tools) -> None:
    chooser = another(
        choose=Action(lambda c, t: Step("choose", {"read": []}, "last"), "read", "chosen", "other"),
        other=Action(lambda c, t: {"read": ["other"]}, "read", "read", None),
        last=Action(lambda c, t: {"read": ["last"]}, "read", "read", None),
    )
    end = chooser.run_to_end(store, chooser.start(store, "run-1"), tools)
    assert (end.version, end.context["read"]) == (2, ["last"])


@pytest.mark.parametrize(
    "perform",
    [lambda c, t: {"read": []}, lambda c, t: Step("start", {}, "nowhere")],
    ids=["found", "step"],
)
def test_an_action_that_leads_nowhere_saves_nothing(
    store: SQLiteStore, tools: Tools, perform: Callable[[Context, CallTool], JSONObject | Step]
) -> None:
    lost = another(start=Action(perform, "read", "read", "nowhere"))
    state = lost.start(store, "run-1")
    with pytest.raises(UnknownActionError, match=r"start of run-1 leads to 'nowhere', .* start"):
        lost.run_next_action(store, state, tools)
    assert store.load_state("run-1") == state


def test_a_reason_is_asked_of_the_context_as_it_was(store: SQLiteStore, tools: Tools) -> None:
    def read(context: Context, call_tool: CallTool) -> JSONObject:
        context["pages"].clear()
        return {"read": ["a"]}

    steps: list[Step] = []
    reader = another(read=Action(read, "read", "read", None, lambda c: f"{len(c['pages'])} pages"))

    class Listening(SQLiteStore):
        def save_checkpoint(self, state: RunState, step: Step) -> RunState:
            steps.append(step)
            return super().save_checkpoint(state, step)

    listening = Listening(store.connection, "session-1")
    end = reader.run_to_end(listening, reader.start(listening, "run-1"), tools)
    assert steps[0].because == "2 pages"
    assert end.context["pages"] == ["a", "b"]


def test_a_run_is_asked_for_by_its_own_id(store: SQLiteStore) -> None:
    with pytest.raises(InvalidStateError, match="T104 is known as run-T104: ask for that one"):
        ticket_agent.resume_or_start(store, "T104")
    assert store.unfinished_runs() == []


def test_who_is_too_late_to_start_a_run_resumes_it(store: SQLiteStore, second: SQLiteStore) -> None:
    class Late(SQLiteStore):
        def start_run(self, state: RunState) -> RunState:
            ticket_agent.start(store, "run-T104")
            return super().start_run(state)

    state = ticket_agent.resume_or_start(Late(second.connection, "session-2"), "run-T104")
    assert state.version == 0
    assert kinds(store) == ["run_started", "run_resumed"]


def test_a_run_that_waits_stays_where_it_is(store: SQLiteStore, tools: Tools) -> None:
    arrived: list[str] = []
    waiter = another(
        wait=Action(lambda c, t: {"read": arrived} if arrived else None, "read", "read", None)
    )
    state = waiter.start(store, "run-1")
    passed: list[str] = []
    assert waiter.run_to_end(store, state, tools, passing=passed.append) == state
    assert passed == ["wait:begin"]
    assert len(store.read_events("run-1")) == 1
    arrived.append("a")
    assert waiter.run_to_end(store, state, tools).status == "completed"


def test_a_step_says_what_it_rests_on(store: SQLiteStore, tools: Tools) -> None:
    steps: list[Step] = []

    class Listening(SQLiteStore):
        def save_checkpoint(self, state: RunState, step: Step) -> RunState:
            steps.append(step)
            return super().save_checkpoint(state, step)

    listening = Listening(store.connection, "session-1")
    ticket_agent.run_to_end(listening, ticket_agent.start(listening, "run-T104"), tools)
    assert [step.because for step in steps] == [
        "a safety impact, out for 18 minutes",
        *["priority urgent, area cold storage"] * 3,
    ]


def test_the_agent_knows_no_store() -> None:
    source = Path(lesson_lib.agent.__file__).read_text(encoding="utf-8")
    assert not [word for word in ("sqlite", "connection", "tickets") if word in source]
