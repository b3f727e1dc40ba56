"""Checks of lesson 11: an upcaster, a projection that is pure, the choice of a pattern."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from lesson_lib.errors import ReplayError
from lesson_lib.json_text import JSONObject
from lesson_lib.labs.checks import exercise, given
from lesson_lib.labs.four_patterns.choosing import CASES, LADDER, choose
from lesson_lib.labs.four_patterns.long_runs import ACTIONS
from lesson_lib.labs.four_patterns.purity import no_looking_outside
from lesson_lib.tickets.log_schema import NOT_RECORDED

OTHER_EVENTS = [action.event for name, action in ACTIONS.items() if name != "draft_reply"]


@exercise(1, "return the event type and the payload of schema version 4")
def exercise_1(upcast_3: Callable[[str, JSONObject], tuple[str, JSONObject]]) -> str | None:
    """Take one event of each kind a step up."""
    drafted = {"draft": "Close the dock.", "because": "priority urgent"}
    other = {"field": "a value", "because": "a safety impact"}
    before = copy.deepcopy((drafted, other))
    answer = given(upcast_3("reply_drafted", drafted))
    if not isinstance(answer, tuple) or len(answer) != 2:
        return "return two things, the event type and the payload"
    for kind in ("run_started", *OTHER_EVENTS):
        if upcast_3(kind, other) != (kind, before[1]):
            return f"an event of the type {kind} must come back as it was"
    if (drafted, other) != before:
        return "the payload that was given has changed: return a new one"
    event_type, payload = answer
    if event_type != "reply_drafted":
        return f"the type of the event stays reply_drafted, yours is {event_type!r}"
    if not isinstance(payload, dict) or "audience" not in payload:
        return "the payload of reply_drafted lacks audience"
    if payload["audience"] != NOT_RECORDED:
        return (
            f"nobody wrote down who the audience was, so it is {NOT_RECORDED!r}, not"
            f" {payload['audience']!r}: history is not invented"
        )
    if payload != {**before[0], "audience": NOT_RECORDED}:
        return "draft and because must stay in the payload as they were"
    return None


EVENTS: list[JSONObject] = [
    {"at": "2026-01-05", "text": "sensor silent"},
    {"at": "2026-01-06", "text": "technician paged"},
]


@exercise(2, "mend the function")
def exercise_2(add_note: Callable[[JSONObject, JSONObject], JSONObject]) -> str | None:
    """Replay two notes, under watch, from the beginning and from a snapshot."""
    empty: JSONObject = {"notes": [], "last_seen": None}
    state = copy.deepcopy(empty)
    try:
        with no_looking_outside():
            for event in EVENTS:
                kept = copy.deepcopy(state)
                new = add_note(state, copy.deepcopy(event))
                if state != kept:
                    return (
                        "the state before the event has changed: a snapshot of it would change with"
                        " it, so return a new dict with a new list"
                    )
                state = given(new)
    except ReplayError as error:
        return str(error)
    if not isinstance(state, dict) or state.get("notes") != [event["text"] for event in EVENTS]:
        return "the notes of the new state are not those of the events, in order"
    if state.get("last_seen") != EVENTS[-1]["at"]:
        return f"last_seen is {state.get('last_seen')!r}, and the last note was made on another day"
    return None


@exercise(3, "give a pattern and a reason for each case")
def exercise_3(decisions: Mapping[str, tuple[str, Any]]) -> str | None:
    """Compare each decision with the simplest pattern that has what the case needs."""
    steps = list(LADDER)
    for name, needs in CASES.items():
        if name not in decisions:
            return f"{name!r} has no decision"
        pattern, lacks = given(decisions[name])
        if pattern not in LADDER:
            return f"{name!r}: {pattern!r} is no pattern, choose one of {', '.join(LADDER)}"
        missing = sorted(needs - LADDER[pattern])
        if missing:
            return f"{name!r}: {pattern} is not enough, it lacks: {missing[0]}"
        right = choose(needs)
        if pattern != right:
            return (
                f"{name!r}: {pattern} does it, and a simpler pattern does it too: look at what the"
                " case asks for"
            )
        simpler = steps[steps.index(right) - 1] if right != steps[0] else None
        if simpler is None:
            if lacks is not None:
                return f"{name!r}: nothing is simpler than {right}, so the reason is None"
        elif lacks not in needs:
            return (
                f"{name!r}: {pattern} is right, and the case does not ask for {lacks!r}: what does"
                f" it ask for that {simpler} lacks?"
            )
        elif lacks in LADDER[simpler]:
            return f"{name!r}: {pattern} is right, and {simpler} has what you say it lacks: {lacks}"
    return None
