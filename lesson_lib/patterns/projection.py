"""From events to state: a pure function of a state and an event, folded over the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from lesson_lib.errors import ReplayError
from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.model import RunState
from lesson_lib.patterns.event_schema import LogEvent
from lesson_lib.patterns.purity import no_looking_outside

# What each event sets in the context, and which action comes after it.
EVENTS: dict[str, tuple[str, str | None]] = {
    "priority_set": ("priority", "lookup_runbook"),
    "runbook_found": ("runbook", "draft_reply"),
    "reply_drafted": ("draft", "finish"),
    "run_finished": ("reply", None),
    "page_read": ("cursors", "read_page"),
    "document_found": ("documents", "find_document"),
}

type Apply = Callable[[RunState | None, LogEvent], RunState]


def merge(context: Mapping[str, Any], found: JSONObject) -> JSONObject:
    """Return a context with what a step found: a list grows, any other value is replaced."""
    lists = {n: [*context.get(n, []), *v] for n, v in found.items() if isinstance(v, list)}
    return {**context, **found, **lists}


def apply(state: RunState | None, event: LogEvent) -> RunState:
    """Return the state after an event.

    Args:
        state: The state before it; None before the first.
        event: The event that follows.

    Raises:
        ReplayError: It is not the one that follows, or is of no known type.
    """
    wanted = 1 if state is None else state.version + 2
    if event.sequence != wanted:
        raise ReplayError(
            f"the log of {event.run_id} has the sequence {event.sequence} where {wanted} must"
            " follow: restore it from a backup"
        )
    payload = event.payload
    if state is None:
        if event.event_type != "run_started":
            raise ReplayError(f"the log of {event.run_id} begins with {event.event_type}")
        context_json = to_json(payload["context"], "context")
        return RunState(
            event.run_id, payload["ticket_id"], "running", payload["next_action"], context_json, 0
        )
    if event.event_type not in EVENTS:
        raise ReplayError(f"{event.event_type} is no event type of this package: update it")
    field, next_action = EVENTS[event.event_type]
    return replace(
        state,
        status="completed" if next_action is None else "running",
        next_action=next_action,
        context_json=to_json(merge(state.context, {field: payload[field]}), "context"),
        version=state.version + 1,
    )


def project(
    events: Iterable[LogEvent], state: RunState | None = None, apply: Apply = apply
) -> RunState:
    """Replay events, in order, and return the state they lead to.

    Args:
        events: The events after `state`, or all.
        state: Where to begin, such as a snapshot; None for the very beginning.
        apply: The step from a state and an event to the next state. It must be pure.

    Raises:
        ReplayError: There is no event, or `apply` refuses one, or cannot read its payload.
    """
    for event in events:
        try:
            state = apply(state, event)
        except (KeyError, TypeError, AttributeError) as error:
            raise ReplayError(
                f"event {event.sequence} of {event.run_id} is no {event.event_type}: {error!r}."
                " Restore it from a backup"
            ) from error
    if state is None:
        raise ReplayError("there is no event to replay")
    return state


def complaint(events: Iterable[LogEvent], apply: Apply) -> str | None:
    """Return what an `apply` called that it must not call, None where a replay is in order.

    A replay under watch is slow: for tests, not for each load.
    """
    events = list(events)
    try:
        with no_looking_outside():
            project(events, apply=apply)
    except ReplayError as error:
        return str(error).partition(":")[0]
    return None
