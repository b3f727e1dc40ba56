"""A state made again without any checkpoint: from the ticket, the events and the saved results."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from lesson_lib.agent import ACTIONS, run_id_for
from lesson_lib.checkpoints import schema
from lesson_lib.errors import CheckpointError, LessonError, TicketDataError
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import RunState
from lesson_lib.recovery.story import Story
from lesson_lib.stores.sqlite import AgentConnection
from lesson_lib.tickets import read_tickets


def rebuild(connection: AgentConnection, story: Story, until: str | None) -> RunState:
    """Return the state in which `until` was next, as far as it can be made again.

    The actions before it are performed once more, with the saved results in place of the tools:
    no tool is called. Where a result is missing, the state before that action is returned.

    Args:
        connection: An open connection.
        story: The events of the run.
        until: The action that was next; None for a completed run.

    Raises:
        CheckpointError: No ticket belongs to the run.
    """
    ticket_id = next((t for t in _tickets() if run_id_for(t) == story.run_id), None)
    if ticket_id is None:
        raise CheckpointError(f"no ticket of today's ticket file belongs to {story.run_id}")
    context: JSONObject = {"ticket": _tickets()[ticket_id]}

    def saved(tool_name: str, **tool_input: JSONValue) -> JSONValue:
        return saved_result(connection, f"{story.run_id}:{tool_name}", tool_input)

    action: str | None = next(iter(ACTIONS))
    while action is not None and action != until:
        perform, following = ACTIONS[action]
        try:
            found = context | perform(context, saved)
            schema.check(found)
        except LessonError:
            break
        context = found
        action = following
    return RunState(
        run_id=story.run_id,
        ticket_id=ticket_id,
        status="completed" if action is None else "running",
        next_action=action,
        context_json=to_json(context, "context"),
        version=_version_before(story, action),
    )


def saved_result(
    connection: AgentConnection, key: str, tool_input: JSONObject | None = None
) -> JSONValue:
    """Return the saved result of a key.

    Args:
        connection: An open connection.
        key: The idempotency key.
        tool_input: What the tool must have been called with; None for any.

    Raises:
        CheckpointError: There is none, or it cannot be read, or it is one of another input.
    """
    # As bytes: text that is no UTF-8 any more would be an error of Python's own.
    row = connection.execute(
        """SELECT CAST(result_json AS BLOB), CAST(input_sha256 AS BLOB) FROM tool_effects
        WHERE idempotency_key = ?""",
        (key,),
    ).fetchone()
    if row is None:
        raise CheckpointError(f"no result of {key} is saved")
    if tool_input is not None:
        digest = hashlib.sha256(to_json(tool_input, "tool_input").encode()).hexdigest()
        if row[1] != digest.encode():
            raise CheckpointError(f"the saved result of {key} is one of another input")
    try:
        return from_json(row[0].decode())
    except ValueError as error:
        raise CheckpointError(f"the saved result of {key} cannot be read") from error


def _version_before(story: Story, action: str | None) -> int:
    """Return the newest version after which an action was next."""
    for version in range(story.newest, 0, -1):
        try:
            if story.next_after(version) == action:
                return version
        except CheckpointError:
            continue
    return 0


def _tickets() -> dict[str, JSONObject]:
    try:
        tickets = read_tickets()
    except TicketDataError:
        return {}
    facts = ("area", "issue", "outage_minutes", "safety_impact")
    return {t.ticket_id: {name: asdict(t)[name] for name in facts} for t in tickets}
