"""The agent: four actions, one checkpoint after each; plain Python chooses the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lesson_lib.errors import (
    CorruptStateError,
    RunCompletedError,
    SimulatedCrash,
    UnknownActionError,
    UnknownRunError,
)
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.model import RunState, ToolResult
from lesson_lib.stores.sqlite import (
    AgentConnection,
    execute_once,
    load_state,
    record_event,
    save_checkpoint,
    start_run,
)
from lesson_lib.tickets import Ticket, Tools, classify, runbook_code


class CallTool(Protocol):
    """Calls a tool of this run through `execute_once` and returns its value."""

    def __call__(self, tool_name: str, **tool_input: JSONValue) -> JSONValue:
        """Call the tool with these arguments."""


def classify_priority(context: Mapping[str, Any], call_tool: CallTool) -> JSONObject:
    """Apply the priority rule to the ticket."""
    outage, safety = (_need(context, "ticket", n) for n in ("outage_minutes", "safety_impact"))
    if type(outage) is not int or type(safety) is not bool:
        raise CorruptStateError("the ticket of the context has values of the wrong type")
    return {"priority": classify(outage, safety)}


def lookup_runbook(context: Mapping[str, Any], call_tool: CallTool) -> JSONObject:
    """Look up the step to take for this area and priority."""
    code = runbook_code(_need(context, "ticket", "area"), _need(context, "priority"))
    return {"runbook": call_tool("lookup_runbook", code=code)}


def draft_reply(context: Mapping[str, Any], call_tool: CallTool) -> JSONObject:
    """Draft the reply from the priority and the runbook's step."""
    priority, step = _need(context, "priority"), _need(context, "runbook", "step")
    return {"draft": call_tool("draft_reply", priority=priority, step=step)}


def finish(context: Mapping[str, Any], call_tool: CallTool) -> JSONObject:
    """Make the draft the final reply."""
    return {"reply": _need(context, "draft")}


ACTIONS = {
    "classify_priority": (classify_priority, "lookup_runbook"),
    "lookup_runbook": (lookup_runbook, "draft_reply"),
    "draft_reply": (draft_reply, "finish"),
    "finish": (finish, None),
}


def run_id_for(ticket_id: str) -> str:
    """Return the id of a ticket's run, such as `run-T104`."""
    return f"run-{ticket_id}"


def start(connection: AgentConnection, ticket: Ticket, session: str) -> RunState:
    """Start the run of a ticket. Its context holds what the agent needs to know, no more."""
    return start_run(
        connection,
        run_id=run_id_for(ticket.ticket_id),
        ticket_id=ticket.ticket_id,
        session=session,
        first_action="classify_priority",
        context={
            "ticket": {
                "area": ticket.area,
                "issue": ticket.issue,
                "outage_minutes": ticket.outage_minutes,
                "safety_impact": ticket.safety_impact,
            }
        },
    )


def resume(connection: AgentConnection, run_id: str, session: str) -> RunState:
    """Load the checkpoint of an unfinished run and record that a new session goes on with it.

    Raises:
        UnknownRunError: There is no such run.
        CorruptStateError: Its stored state cannot be trusted.
        RunCompletedError: It is finished. No event was recorded.
    """
    with connection:
        state = load_state(connection, run_id)
        state.require_unfinished()
        record_event(
            connection,
            run_id=run_id,
            session=session,
            event_type="run_resumed",
            action="resume",
            detail={"version": state.version},
        )
    return state


def resume_or_start(connection: AgentConnection, ticket: Ticket, session: str) -> RunState:
    """Resume the run of a ticket, start it where there is none, or load it when it is finished."""
    run_id = run_id_for(ticket.ticket_id)
    try:
        return resume(connection, run_id, session)
    except UnknownRunError:
        return start(connection, ticket, session)
    except RunCompletedError:  # an earlier session died after its last checkpoint
        return load_state(connection, run_id)


def run_next_action(
    connection: AgentConnection,
    state: RunState,
    session: str,
    tools: Tools,
    *,
    crash_after_tool: bool = False,
    passing: Callable[[str], None] = lambda point: None,
    save: Callable[..., RunState] | None = None,
    execute: Callable[..., ToolResult] | None = None,
) -> RunState:
    """Perform the next action of a run and save a checkpoint; return the new state.

    Args:
        connection: An open connection, outside of a transaction.
        state: The run's state as this process loaded or saved it last.
        session: Which process life does this.
        tools: The tools to call.
        crash_after_tool: Raise `SimulatedCrash` after the action's tool result is saved and
            before the checkpoint is.
        passing: Called with the name of each crash point the action comes to, such as
            `lookup_runbook:before_checkpoint`.
        save: What saves the checkpoint, with the arguments of `save_checkpoint`, the default.
        execute: What calls a tool, with the arguments of `execute_once`, the default.

    Raises:
        RunCompletedError: The run is finished.
        UnknownActionError: The checkpoint names an action this agent does not have.
        CorruptStateError: The context lacks what the action needs.
        SimulatedCrash: On demand.
        StaleVersionError: Another worker saved a checkpoint meanwhile.
    """
    state.require_unfinished()
    action = str(state.next_action)
    if action not in ACTIONS:
        raise UnknownActionError(
            f"{state.run_id} wants to do {action!r}, this agent knows {', '.join(ACTIONS)}"
        )
    perform, next_action = ACTIONS[action]

    def call_tool(tool_name: str, **tool_input: JSONValue) -> JSONValue:
        key = f"{state.run_id}:{tool_name}"

        def function() -> JSONValue:
            value = getattr(tools, tool_name)(key, **tool_input)
            passing(f"{action}:tool_ran")
            return value

        return (execute or execute_once)(
            connection,
            function,
            run_id=state.run_id,
            session=session,
            key=key,
            tool_name=tool_name,
            tool_input=tool_input,
        ).value

    passing(f"{action}:begin")
    try:
        found = perform(state.context, call_tool)
    except CorruptStateError as error:
        raise CorruptStateError(f"{action} of {state.run_id}: {error}. Restore a backup") from error
    passing(f"{action}:before_checkpoint")
    if crash_after_tool:
        raise SimulatedCrash(f"the process died after {action} and before its checkpoint")
    saved = (save or save_checkpoint)(
        connection,
        state,
        session=session,
        action=action,
        next_action=next_action,
        context=state.context | found,
    )
    passing(f"{action}:checkpoint_saved")
    return saved


def run_to_end(
    connection: AgentConnection,
    state: RunState,
    session: str,
    tools: Tools,
    *,
    passing: Callable[[str], None] = lambda point: None,
    save: Callable[..., RunState] | None = None,
    execute: Callable[..., ToolResult] | None = None,
) -> RunState:
    """Perform actions until the run is completed; return its last state."""
    while state.status != "completed":
        state = run_next_action(
            connection, state, session, tools, passing=passing, save=save, execute=execute
        )
    return state


def _need(context: Mapping[str, Any], *path: str) -> Any:
    value: Any = context
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            raise CorruptStateError(f"the context lacks {'.'.join(path)}")
        value = value[name]
    return value
