"""What the events of the ticket agent's log looked like before: the step up from each version."""

from __future__ import annotations

from lesson_lib.json_text import JSONObject

NOT_RECORDED = "not recorded"


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


UPCASTERS = (_name_priority, _add_because)
