"""Checks of lesson 05: deaths in a trace, the order of events, what an event may keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lesson_lib.errors import SimulatedCrash
from lesson_lib.labs.checks import exercise, given, scratch_database
from lesson_lib.ledger import Ledger
from lesson_lib.model import Event
from lesson_lib.sqlite import SQLiteStore
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent


def _trace(crashes: int) -> list[Event]:
    """Return the events of a real run in which so many sessions died."""
    with scratch_database() as (connection, folder):
        tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))
        store = SQLiteStore(connection, "session-1")
        state = ticket_agent.start(store, "run-T104")
        state = ticket_agent.run_next_action(store, state, tools)
        for number in range(1, crashes + 1):
            try:
                ticket_agent.run_next_action(store, state, tools, crash_after_tool=True)
            except SimulatedCrash:
                store = SQLiteStore(connection, f"session-{number + 1}")
                state = ticket_agent.resume(store, "run-T104")
        ticket_agent.run_to_end(store, state, tools)
        return store.read_events("run-T104")


@exercise(1, "return the sequence numbers")
def exercise_1(deaths: Callable[[Sequence[Event]], list[int]]) -> str | None:
    """Try traces with none, one and several crashes."""
    for crashes in (0, 1, 3):
        events = _trace(crashes)
        wanted = [e.sequence - 1 for e in events if e.event_type == "run_resumed"]
        found = given(deaths(events))
        if found != wanted:
            return (
                f"for a run with {crashes} crashes, in the sessions"
                f" {[e.session[-1] for e in events]}, it returned {found!r}, wanted: {wanted}"
            )
    return None


@exercise(2, "assign a list of letters to order")
def exercise_2(order: Sequence[str]) -> str | None:
    """Compare with the only possible order, and say which rule is broken."""
    if sorted(order) != list("ABCDE"):
        return "use each of the letters A to E once"
    at = {letter: index for index, letter in enumerate(order)}
    for first, second, why in (
        ("E", "C", "no checkpoint comes before the run has started"),
        ("C", "B", "a run is resumed after its first session died, not before"),
        ("B", "D", "session-2 first records that it resumes"),
        ("D", "A", "the checkpoint comes after the tool"),
    ):
        if at[first] > at[second]:
            return f"{first} must come before {second}: {why}"
    return None


@exercise(3, "choose what the detail keeps")
def exercise_3(detail_of: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> str | None:
    """Give calls with private fields, among them one the learner cannot know."""
    call = {"key": "run-T104:lookup_runbook", "tool_name": "lookup_runbook"}
    private = {"text": "my badge number is 4711", "result": {"step": "Call Ms. Lee"}}
    detail = given(detail_of(call | private))
    kept = [name for name in private if str(private[name]) in str(detail)]
    if kept:
        return f"the detail still holds the {' and the '.join(kept)} of the call"
    if dict(detail) != call:
        return f"the detail should hold key and tool_name, yours is {dict(detail)}"
    if dict(detail_of(call | private | {"token": "s3cret"})) != call:
        return "a field that nobody thought of, `token`, got into the trace: name what may stay"
    return None
