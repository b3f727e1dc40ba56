"""The agent: each ticket ends in the right reply, and whatever stops it leaves a run to resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lesson_lib import agent
from lesson_lib.errors import (
    CorruptStateError,
    RunCompletedError,
    SimulatedCrash,
    StaleVersionError,
    UnknownActionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    load_state,
    read_events,
    save_checkpoint,
)
from lesson_lib.tickets import Tools, find_ticket, read_tickets

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


def started(connection: AgentConnection, ticket_id: str = "T104") -> RunState:
    return agent.start(connection, find_ticket(read_tickets(), ticket_id), "session-1")


def at_lookup(connection: AgentConnection, tools: Tools) -> RunState:
    return agent.run_next_action(connection, started(connection), "session-1", tools)


def kinds(connection: AgentConnection) -> list[str]:
    return [event.event_type for event in read_events(connection, "run-T104")]


@pytest.mark.parametrize("ticket_id", REPLIES)
def test_each_ticket_gets_its_reply(
    connection: AgentConnection, tools: Tools, ticket_id: str
) -> None:
    end = agent.run_to_end(connection, started(connection, ticket_id), "session-1", tools)
    assert (end.status, end.next_action, end.version) == ("completed", None, 4)
    assert end.context["reply"] == REPLIES[ticket_id]
    assert load_state(connection, f"run-{ticket_id}") == end
    keys = [f"run-{ticket_id}:{tool}" for tool in ("lookup_runbook", "draft_reply")]
    assert tools.ledger.lines() == keys


def test_the_replies_cover_the_data() -> None:
    assert list(REPLIES) == [ticket.ticket_id for ticket in read_tickets()]


def test_each_action_leads_to_the_next(connection: AgentConnection, tools: Tools) -> None:
    state, passed = started(connection), []
    while state.next_action:
        passed.append(state.next_action)
        state = agent.run_next_action(connection, state, "session-1", tools)
        assert load_state(connection, "run-T104") == state
        assert state.version == len(passed)
    assert passed == ["classify_priority", "lookup_runbook", "draft_reply", "finish"]


def test_the_crash_points_come_in_order(connection: AgentConnection, tools: Tools) -> None:
    passed: list[str] = []
    agent.run_to_end(connection, started(connection), "session-1", tools, passing=passed.append)
    with_tool = ("begin", "tool_ran", "before_checkpoint", "checkpoint_saved")
    without = ("begin", "before_checkpoint", "checkpoint_saved")
    assert passed == [
        *(f"classify_priority:{point}" for point in without),
        *(f"lookup_runbook:{point}" for point in with_tool),
        *(f"draft_reply:{point}" for point in with_tool),
        *(f"finish:{point}" for point in without),
    ]


def test_the_crash_comes_after_the_result_and_before_the_checkpoint(
    connection: AgentConnection, tools: Tools
) -> None:
    state = at_lookup(connection, tools)
    with pytest.raises(SimulatedCrash):
        agent.run_next_action(connection, state, "session-1", tools, crash_after_tool=True)
    assert load_state(connection, "run-T104") == state
    assert kinds(connection)[-1] == "tool_executed"
    assert tools.ledger.lines() == [LOOKUP]


def test_code_that_catches_errors_does_not_survive_a_crash() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_a_tool_is_called_outside_of_any_transaction(
    connection: AgentConnection, tools: Tools
) -> None:
    seen: list[bool] = []

    class Looking(Tools):
        def lookup_runbook(self, key: str, code: str) -> JSONObject:
            seen.append(connection.in_transaction)
            return super().lookup_runbook(key, code)

    looking = Looking(tools.runbooks, tools.ledger)
    agent.run_to_end(connection, started(connection), "session-1", looking)
    assert seen == [False]


def test_resume_goes_on_where_the_checkpoint_is(connection: AgentConnection, tools: Tools) -> None:
    state = at_lookup(connection, tools)
    assert agent.resume(connection, "run-T104", "session-2") == state
    event = read_events(connection, "run-T104")[-1]
    assert (event.session, event.event_type, event.action) == ("session-2", "run_resumed", "resume")
    assert event.detail == '{"version": 1}'


def test_resume_of_an_unknown_run_is_refused(connection: AgentConnection) -> None:
    with pytest.raises(UnknownRunError, match="run-T104"):
        agent.resume(connection, "run-T104", "session-2")


def test_a_completed_run_stays_as_it_is(connection: AgentConnection, tools: Tools) -> None:
    end = agent.run_to_end(connection, started(connection), "session-1", tools)
    before = kinds(connection)
    with pytest.raises(RunCompletedError, match="run-T104"):
        agent.resume(connection, "run-T104", "session-2")
    with pytest.raises(RunCompletedError, match="run-T104"):
        agent.run_next_action(connection, end, "session-1", tools)
    assert agent.run_to_end(connection, end, "session-2", tools) == end
    assert kinds(connection) == before
    assert len(tools.ledger.lines()) == 2


def test_an_unknown_action_is_refused_and_changes_nothing(
    connection: AgentConnection, tools: Tools
) -> None:
    state = save_checkpoint(
        connection,
        started(connection),
        session="session-1",
        action="classify_priority",
        next_action="send_mail",
        context={},
    )
    before = kinds(connection)
    with pytest.raises(UnknownActionError, match=r"run-T104 .*'send_mail'.* classify_priority"):
        agent.run_next_action(connection, state, "session-1", tools)
    assert (load_state(connection, "run-T104"), kinds(connection)) == (state, before)


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
    connection: AgentConnection, tools: Tools, action: str, context: dict[str, Any], lacking: str
) -> None:
    first = started(connection)
    state = save_checkpoint(
        connection, first, session="s", action="edit", next_action=action, context=context
    )
    with pytest.raises(CorruptStateError, match=f"lacks {lacking}"):
        agent.run_next_action(connection, state, "session-1", tools)
    assert load_state(connection, "run-T104") == state
    assert tools.ledger.lines() == []


@pytest.mark.parametrize("error", [KeyError("code"), TypeError("no"), SimulatedCrash(), OSError(5)])
def test_the_error_of_a_tool_comes_through_and_the_next_call_tries_again(
    connection: AgentConnection, tools: Tools, error: BaseException
) -> None:
    class Failing(Tools):
        def lookup_runbook(self, key: str, code: str) -> JSONObject:
            super().lookup_runbook(key, code)
            raise error

    state = at_lookup(connection, tools)
    before = kinds(connection)
    failing = Failing(tools.runbooks, tools.ledger)
    with pytest.raises(type(error)) as caught:
        agent.run_next_action(connection, state, "session-1", failing)
    assert caught.value is error
    assert (load_state(connection, "run-T104"), kinds(connection)) == (state, before)
    end = agent.run_to_end(connection, state, "session-1", tools)
    assert end.context["reply"] == REPLIES["T104"]
    assert tools.ledger.count(LOOKUP) == 2


def test_a_late_worker_reuses_the_result_and_is_refused(
    connection: AgentConnection, tools: Tools, tmp_path: Path
) -> None:
    state = at_lookup(connection, tools)
    late = connect(tmp_path / "agent.db")
    try:
        stale = agent.resume(late, "run-T104", "session-2")
        saved = agent.run_next_action(connection, state, "session-1", tools)
        with pytest.raises(StaleVersionError, match="version 2, this worker loaded version 1"):
            agent.run_next_action(late, stale, "session-2", tools)
    finally:
        late.close()
    assert load_state(connection, "run-T104") == saved
    assert kinds(connection)[-1] == "tool_reused"
    assert tools.ledger.count(LOOKUP) == 1
    end = agent.run_to_end(connection, saved, "session-1", tools)
    assert end.context["reply"] == REPLIES["T104"]


def test_a_ticket_is_data_whatever_it_says(connection: AgentConnection, tools: Tools) -> None:
    text = """'); DROP TABLE agent_runs; -- "quoted" 🔥 \x00 {"next_action": null}"""
    ticket = replace(find_ticket(read_tickets(), "T104"), issue=text)
    end = agent.run_to_end(connection, agent.start(connection, ticket, "s"), "s", tools)
    assert load_state(connection, "run-T104").context["ticket"]["issue"] == text
    assert end.context["reply"] == REPLIES["T104"]
    assert not any(text in event.detail for event in read_events(connection, "run-T104"))
