"""The ticket agent: classify, look up the runbook, draft the reply, finish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lesson_lib.agent import Action, Agent, CallTool, Context
from lesson_lib.errors import CorruptStateError
from lesson_lib.json_text import JSONObject
from lesson_lib.model import RunState
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA
from lesson_lib.tickets.reading import Ticket, find_ticket, read_tickets
from lesson_lib.tickets.rule import classify, runbook_code


def classify_priority(context: Context, call_tool: CallTool) -> JSONObject:
    """Apply the priority rule to the ticket."""
    outage, safety = (_need(context, "ticket", n) for n in ("outage_minutes", "safety_impact"))
    if type(outage) is not int or type(safety) is not bool:
        raise CorruptStateError("the ticket of the context has values of the wrong type")
    return {"priority": classify(outage, safety)}


def lookup_runbook(context: Context, call_tool: CallTool) -> JSONObject:
    """Look up the step to take for this area and priority."""
    code = runbook_code(_need(context, "ticket", "area"), _need(context, "priority"))
    return {"runbook": call_tool("lookup_runbook", code=code)}


def draft_reply(context: Context, call_tool: CallTool) -> JSONObject:
    """Draft the reply from the priority and the runbook's step."""
    priority, step = _need(context, "priority"), _need(context, "runbook", "step")
    return {"draft": call_tool("draft_reply", priority=priority, step=step)}


def finish(context: Context, call_tool: CallTool) -> JSONObject:
    """Make the draft the final reply."""
    return {"reply": _need(context, "draft")}


def run_id_for(ticket_id: str) -> str:
    """Return the id of a ticket's run, such as `run-T104`."""
    return f"run-{ticket_id}"


def new_run(ticket: Ticket) -> RunState:
    """Return what the run of a ticket begins with: what the agent needs to know, no more."""
    facts = ("area", "issue", "outage_minutes", "safety_impact")
    context = {"ticket": {name: getattr(ticket, name) for name in facts}}
    return RunState.begin(
        run_id_for(ticket.ticket_id), ticket.ticket_id, next(iter(ACTIONS)), context
    )


def begin(run_id: str) -> RunState:
    """Return what the run of this id begins with, from today's ticket file.

    Raises:
        TicketDataError: There is no such ticket, or the file cannot be trusted.
    """
    return new_run(find_ticket(read_tickets(), run_id.removeprefix("run-")))


def _facts(context: Context) -> str:
    ticket = context["ticket"]
    safety = "a" if ticket["safety_impact"] else "no"
    return f"{safety} safety impact, out for {ticket['outage_minutes']} minutes"


def _priority(context: Context) -> str:
    area = context.get("ticket", {}).get("area", "not known")
    return f"priority {context.get('priority', 'not known')}, area {area}"


def _need(context: Context, *path: str) -> Any:
    value: Any = context
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            raise CorruptStateError(f"the context lacks {'.'.join(path)}")
        value = value[name]
    return value


# A field that a new action makes is a field of `checkpoint_schema` too: else no archive keeps it.
ACTIONS = {
    "classify_priority": Action(
        classify_priority,
        makes="priority",
        event="priority_set",
        next_action="lookup_runbook",
        because=_facts,
    ),
    "lookup_runbook": Action(
        lookup_runbook,
        makes="runbook",
        event="runbook_found",
        next_action="draft_reply",
        because=_priority,
    ),
    "draft_reply": Action(
        draft_reply,
        makes="draft",
        event="reply_drafted",
        next_action="finish",
        because=_priority,
    ),
    "finish": Action(
        finish, makes="reply", event="run_finished", next_action=None, because=_priority
    ),
}
ticket_agent = Agent(ACTIONS, begin, TICKET_SCHEMA)
