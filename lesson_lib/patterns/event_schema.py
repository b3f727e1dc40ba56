"""The schema of the log's events: its version today, and the step up from each older one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lesson_lib.errors import ReplayError
from lesson_lib.json_text import JSONObject

CURRENT = 3
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class LogEvent:
    """One event of a run's log, in today's schema: something that happened, with its values."""

    run_id: str
    sequence: int
    event_type: str
    payload: JSONObject


def upcast(event_type: str, payload: JSONObject, event_schema: int) -> tuple[str, JSONObject]:
    """Return type and payload of an older event as today's, one step per version.

    The stored event stays as it is: history is not rewritten, only read differently.

    Raises:
        ReplayError: The version is none of ours, newer ones included, or the payload is not what
            its version says.
    """
    if event_schema not in range(1, CURRENT + 1):
        raise ReplayError(
            f"an event has the schema version {event_schema}, this package knows 1 to {CURRENT}:"
            " update the package, nothing is guessed"
        )
    try:
        for version in range(event_schema, CURRENT):
            event_type, payload = UPCASTERS[version](event_type, payload)
    except (KeyError, TypeError) as error:
        raise ReplayError(
            f"a {event_type} is not one of event schema version {event_schema}: {error!r}"
        ) from error
    return event_type, payload


def _name_priority(event_type: str, payload: JSONObject) -> tuple[str, JSONObject]:
    """1 to 2: `ticket_classified` told urgent or not; `priority_set` names the priority."""
    if event_type == "ticket_classified":
        return "priority_set", {"priority": {True: "urgent", False: "normal"}[payload["urgent"]]}
    return event_type, payload


def _add_because(event_type: str, payload: JSONObject) -> tuple[str, JSONObject]:
    """2 to 3: a run may start anywhere, with any context; each later event says why."""
    if event_type == "run_started":
        context = {"ticket": payload["ticket"]}
        start = {"next_action": "classify_priority", "context": context}
        return event_type, {"ticket_id": payload["ticket_id"]} | start
    return event_type, payload | {"because": NOT_RECORDED}


UPCASTERS: dict[int, Callable[[str, JSONObject], tuple[str, JSONObject]]] = {
    1: _name_priority,
    2: _add_because,
}
