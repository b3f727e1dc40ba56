"""The schema of a checkpoint's context: its version today, and the step up from each older one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from lesson_lib.errors import CheckpointError, InvalidStateError
from lesson_lib.json_text import JSONObject, JSONValue
from lesson_lib.tickets import runbook_code

CURRENT = 4
TICKET = {"area": str, "issue": str, "outage_minutes": int, "safety_impact": bool}
RUNBOOK = {"code": str, "audience": str, "step": str}
# Only `ticket` is required: a run begins with nothing else.
FIELDS: dict[str, type] = {
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
}


def upcast(context: Mapping[str, Any], schema_version: int) -> JSONObject:
    """Return a context of an older schema version as one of today's, one step per version.

    Args:
        context: The context as it was stored.
        schema_version: The schema it was stored under, from 1 to `CURRENT`.

    Raises:
        CheckpointError: The version is none of ours, newer ones included, or the context is not
            what its version says.
    """
    if schema_version not in range(1, CURRENT + 1):
        raise CheckpointError(
            f"it has the schema version {schema_version}, this package knows 1 to {CURRENT}:"
            " update the package, nothing is guessed"
        )
    if not isinstance(context, Mapping):
        raise CheckpointError(f"its context is a {type(context).__name__}, not a JSON object")
    found = dict(context)
    try:
        for version in range(schema_version, CURRENT):
            found = UPCASTERS[version](found)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"its context is not one of schema version {schema_version}: {error!r}"
        ) from error
    return found


def check(context: Mapping[str, Any]) -> None:
    """Do nothing for a context of today's schema: known fields, each of its type.

    Raises:
        InvalidStateError: A field is unknown, is missing, or has another type.
    """
    if "ticket" not in context:
        raise InvalidStateError("the context lacks ticket: a checkpoint without it cannot go on")
    _check_fields("context", context, FIELDS, all_needed=False)
    _check_fields("context.ticket", context["ticket"], TICKET, all_needed=True)
    if "runbook" in context:
        _check_fields("context.runbook", context["runbook"], RUNBOOK, all_needed=True)


def experiment(context: Mapping[str, Any], name: str, value: Any, flags: Set[str]) -> JSONObject:
    """Return the context with an experimental field, or as it is where its flag is off.

    Args:
        context: The context so far.
        name: The name of the field, and of its flag.
        value: Its value.
        flags: The flags that are on in this process.

    Raises:
        InvalidStateError: `experimental` is there, and is no object.
    """
    if name not in flags:
        return dict(context)
    tried = context.get("experimental", {})
    if not isinstance(tried, dict):
        raise InvalidStateError(f"context.experimental is a {type(tried).__name__}, not a dict")
    return dict(context) | {"experimental": tried | {name: value}}


def _check_fields(
    path: str, found: Mapping[str, Any], wanted: Mapping[str, type], *, all_needed: bool
) -> None:
    for name, value in found.items():
        if name not in wanted:
            raise InvalidStateError(
                f"{path}.{name} is no field of schema version {CURRENT}: add it to the schema, or"
                " put it under experimental"
            )
        if type(value) is not wanted[name]:
            raise InvalidStateError(
                f"{path}.{name} is a {type(value).__name__}, not a {wanted[name].__name__}"
            )
    for name in wanted:
        if all_needed and name not in found:
            raise InvalidStateError(f"{path} lacks {name}")


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


UPCASTERS: dict[int, Callable[[JSONObject], JSONObject]] = {
    1: _nest_ticket,
    2: _name_runbook,
    3: _add_confidence,
}
