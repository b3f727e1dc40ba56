"""What every way to keep a run's state can be asked for, and the agent that asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lesson_lib.agent import ACTIONS, run_id_for
from lesson_lib.checkpoints.archive import following
from lesson_lib.errors import UnknownRunError
from lesson_lib.json_text import JSONObject, JSONValue, to_json
from lesson_lib.model import RunState
from lesson_lib.patterns.projection import merge
from lesson_lib.stores.sqlite import AgentConnection, execute_once
from lesson_lib.tickets import Ticket, Tools


@dataclass(frozen=True)
class Step:
    """What an action did: its name, what it found, why, and what comes next (None: nothing)."""

    action: str
    found: JSONObject
    because: str
    next_action: str | None


@dataclass(frozen=True)
class ToolCall:
    """A tool call that is about to be made, with its idempotency key."""

    key: str
    tool_name: str
    tool_input: JSONObject
    function: Callable[[], JSONValue]


class Pattern(Protocol):
    """A way to keep a run's state."""

    def start(self, state: RunState) -> None:
        """Keep a new run, at version 0."""

    def call(self, state: RunState, call: ToolCall) -> JSONValue:
        """Make a tool call of the run, or give its saved result."""

    def save(self, state: RunState, step: Step) -> RunState:
        """Keep what a step did to `state`; return the new state."""

    def load(self, run_id: str) -> RunState:
        """Return the newest state that was kept, or raise `UnknownRunError`."""

    def at(self, run_id: str, version: int) -> RunState:
        """Return the state as it was at a version, or raise `NotKeptError`."""

    def why(self, run_id: str, version: int) -> str:
        """Return why the step that led to a version was taken, or raise `NotKeptError`."""


def call_once(
    connection: AgentConnection, session: str, state: RunState, call: ToolCall
) -> JSONValue:
    """Make a tool call through `execute_once` and return its value."""
    return execute_once(
        connection,
        call.function,
        run_id=state.run_id,
        session=session,
        key=call.key,
        tool_name=call.tool_name,
        tool_input=call.tool_input,
    ).value


def after(state: RunState, step: Step) -> RunState:
    """Return the state that a step leads to."""
    return following(state, step.next_action, merge(state.context, step.found))


def load_or_start(pattern: Pattern, ticket: Ticket) -> RunState:
    """Load the run of a ticket, or start it where nothing is known of it."""
    run_id = run_id_for(ticket.ticket_id)
    try:
        return pattern.load(run_id)
    except UnknownRunError:
        names = ("area", "issue", "outage_minutes", "safety_impact")
        context = {"ticket": {name: getattr(ticket, name) for name in names}}
        state = RunState(
            run_id, ticket.ticket_id, "running", "classify_priority", to_json(context), 0
        )
        pattern.start(state)
        return state


def work(
    pattern: Pattern,
    state: RunState,
    tools: Tools,
    passing: Callable[[str], None] = lambda point: None,
) -> RunState:
    """Perform actions until the run is completed; return its last state.

    Args:
        pattern: How to keep the run.
        state: Where to go on.
        tools: The tools to call.
        passing: Called with the name of each crash point, such as `draft_reply:before_save`.
    """
    while state.next_action is not None:
        action, begun = state.next_action, state
        perform, next_action = ACTIONS[action]

        def call_tool(tool_name: str, **tool_input: JSONValue) -> JSONValue:
            key = f"{begun.run_id}:{tool_name}"  # noqa: B023  (called in this round only)

            def function() -> JSONValue:
                return getattr(tools, tool_name)(key, **tool_input)

            return pattern.call(begun, ToolCall(key, tool_name, tool_input, function))  # noqa: B023

        found = perform(state.context, call_tool)
        passing(f"{action}:before_save")
        state = pattern.save(state, Step(action, found, because(state.context), next_action))
        passing(f"{action}:saved")
    return state


def because(context: Mapping[str, Any]) -> str:
    """Return what the next action rests on, in words."""
    if "priority" not in context:
        ticket = context["ticket"]
        safety = "a" if ticket["safety_impact"] else "no"
        return f"{safety} safety impact, out for {ticket['outage_minutes']} minutes"
    return f"priority {context['priority']}, area {context['ticket']['area']}"


def fork(
    pattern: Pattern, run_id: str, version: int, new_run_id: str, **changes: JSONValue
) -> RunState:
    """Start a new run from an earlier state of another; return its first state.

    Its id is its own, and so are the keys of its tool calls.

    Args:
        pattern: What keeps both runs.
        run_id: The other run.
        version: The version of it to begin with.
        new_run_id: The id of the new run.
        changes: What differs in its context.

    Raises:
        NotKeptError: The pattern has not kept that state.
        RunCompletedError: The run was over there: nothing is left to do otherwise.
    """
    before = pattern.at(run_id, version)
    before.require_unfinished()
    context_json = to_json({**before.context, **changes}, "context")
    state = replace(before, run_id=new_run_id, context_json=context_json, version=0)
    pattern.start(state)
    return state
