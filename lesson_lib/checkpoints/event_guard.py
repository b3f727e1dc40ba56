"""The event guard: the database refuses each event that holds more than is allowed."""

from __future__ import annotations

from collections.abc import Iterable

from lesson_lib.sqlite import AgentConnection
from lesson_lib.sqlite.effects import LONGEST_NAME

# The fields that the detail of an event may have, for each type of event. What a run is about
# stands in its checkpoint: an event needs the name of a thing, never its text.
ALLOWED: dict[str, tuple[str, ...]] = {
    "run_started": (),
    "run_resumed": ("version",),
    "run_stopped": ("reason",),
    "run_abandoned": ("reason",),
    "checkpoint_saved": ("version", "from_version"),
    "checkpoint_refused": ("version", "reason"),
    "recovery_degraded": ("step",),
    "payload_not_kept": ("key", "version"),
    "tool_executed": ("key",),
    "tool_reused": ("key",),
    "tool_intended": ("key",),
    "tool_confirmed": ("key",),
    "tool_refused": ("key",),
    "command_delivered": ("key", "attempts"),
    "command_dead": ("key", "attempts"),
    "command_retry": ("key", "attempts"),
    "command_skip": ("key", "attempts"),
    "question_asked": ("question",),
    "question_answered": ("question",),
}


def guard_events(connection: AgentConnection) -> None:
    """Let the database refuse each event that holds more than `ALLOWED` says, whoever writes it.

    Only names and lengths are looked at: what stands in an allowed field is not known to be
    harmless. Older events stay as they are.
    """
    with connection:
        for when in ("INSERT", "UPDATE"):
            connection.execute(f"DROP TRIGGER IF EXISTS events_hold_what_is_allowed_{when}")
            connection.execute(_trigger(when))


def _trigger(when: str) -> str:
    """Return the trigger that refuses what `ALLOWED` does not name, with a sentence for each."""
    refusals = [
        f"""SELECT RAISE(ABORT, 'no event of this type is allowed: add it to event_guard.ALLOWED')
        WHERE NEW.event_type NOT IN ({_texts(ALLOWED)});"""
    ]
    for event_type, fields in ALLOWED.items():
        named = " and ".join(fields) or "nothing"
        refusals.append(
            f"""SELECT RAISE(ABORT,
                'the detail of a {event_type} event may hold {named}, each short text or a number')
            WHERE NEW.event_type = '{event_type}' AND EXISTS (
                SELECT 1 FROM json_each(NEW.detail)
                WHERE coalesce(key, '') NOT IN ({_texts(fields)})
                OR type NOT IN ('text', 'integer') OR length(value) > {LONGEST_NAME});"""
        )
    return f"""CREATE TRIGGER events_hold_what_is_allowed_{when} BEFORE {when} ON agent_events
    BEGIN {" ".join(refusals)} END"""


def _texts(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
