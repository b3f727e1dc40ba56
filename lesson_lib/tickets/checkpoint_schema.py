"""What the ticket agent's contexts look like: four versions, and the step up from each."""

from __future__ import annotations

from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import CheckpointError
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.tickets.rule import runbook_code


def _nest_ticket(context: JSONObject) -> JSONObject:
    """1 to 2: the ticket's fields move under `ticket`, and safety becomes true or false."""
    safety = {"yes": True, "no": False}[context.pop("safety")]
    ticket = {name: context.pop(name) for name in ("area", "issue", "outage_minutes")}
    return _with(context, "ticket", ticket | {"safety_impact": safety})


def _name_runbook(context: JSONObject) -> JSONObject:
    """2 to 3: the runbook's step gets its code and audience; the prompt is kept no longer."""
    context.pop("prompt", None)
    step = context.pop("runbook_step", None)
    if step is None:
        return context
    code = runbook_code(context["ticket"]["area"], context["priority"])
    return _with(context, "runbook", {"code": code, "audience": "not recorded", "step": step})


def _add_confidence(context: JSONObject) -> JSONObject:
    """3 to 4: nobody measured how sure the agent was, so nothing is known of it."""
    return {"confidence": {}} | context


def _with(context: JSONObject, name: str, value: JSONValue) -> JSONObject:
    if name in context:
        raise CheckpointError(f"its context has {name} beside what {name} is made of: which holds?")
    return context | {name: value}


TICKET_SCHEMA = ContextSchema(
    fields={
        "ticket": dict,
        "priority": str,
        "runbook": dict,
        "draft": str,
        "reply": str,
        "conversation": list,
        "plan": dict,
        "cursors": dict,
        "documents": list,
        "confidence": dict,
        "experimental": dict,  # what no code needs yet: carried along, never looked into
    },
    required=("ticket",),
    nested={
        "ticket": {"area": str, "issue": str, "outage_minutes": int, "safety_impact": bool},
        "runbook": {"code": str, "audience": str, "step": str},
    },
    upcasters=(_nest_ticket, _name_runbook, _add_confidence),
)
