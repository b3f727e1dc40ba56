"""A state made again without any checkpoint: from the ticket, the events and the saved results."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from itertools import dropwhile

from lesson_lib.agent import ACTIONS, run_id_for
from lesson_lib.checkpoints import schema
from lesson_lib.errors import CheckpointError, LessonError, TicketDataError
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import RunState
from lesson_lib.recovery.story import Story
from lesson_lib.stores.sqlite import AgentConnection
from lesson_lib.tickets import read_tickets


class _NotSavedError(CheckpointError):
    """A tool has no saved result."""


@dataclass(frozen=True)
class SavedResults:
    """Stands in for a run's tools: each call gets its saved result, and no tool is called.

    A saved result has no checksum: one that was changed and still fits is not noticed.
    """

    connection: AgentConnection
    run_id: str
    used: list[str] = field(default_factory=list)

    def __call__(self, tool_name: str, **tool_input: JSONValue) -> JSONValue:
        """Return the result of a call.

        Raises:
            CheckpointError: There is none, or it cannot be read, or it is one of another call.
        """
        return self.of(tool_name, tool_input)

    def of(self, tool_name: str, tool_input: JSONObject | None) -> JSONValue:
        """Return the result of a tool; with `tool_input` None, one of any input. See `__call__`."""
        key = f"{self.run_id}:{tool_name}"
        # As bytes: text that is no UTF-8 any more would be an error of Python's own.
        row = self.connection.execute(
            """SELECT CAST(result_json AS BLOB), CAST(input_sha256 AS BLOB),
            run_id = ? AND tool_name = ? FROM tool_effects WHERE idempotency_key = ?""",
            (self.run_id, tool_name, key),
        ).fetchone()
        if row is None:
            raise _NotSavedError(f"no result is saved: that of {key}")
        result, digest, is_ours = row
        if tool_input is not None:
            wanted = hashlib.sha256(to_json(tool_input, "tool_input").encode()).hexdigest()
            is_ours = is_ours and digest == wanted.encode()
        if not is_ours:
            raise CheckpointError(f"a saved result is one of another call: that of {key}")
        try:
            value = from_json(result.decode())
        except ValueError as error:
            raise CheckpointError(f"a saved result cannot be read: that of {key}") from error
        self.used.append(key)
        return value


def rebuild(connection: AgentConnection, story: Story, until: str | None) -> RunState:
    """Return the state in which `until` was next, as far as it can be made again.

    The actions before it are performed once more, with the saved results in place of the tools.
    Where a result is missing, the state before that action is returned.

    Args:
        connection: An open connection.
        story: The events of the run.
        until: The action that was next; None for a completed run.

    Raises:
        CheckpointError: No ticket belongs to the run.
    """
    ticket_id = next((t for t in _tickets() if run_id_for(t) == story.run_id), None)
    if ticket_id is None:
        raise CheckpointError("no ticket of today's ticket file belongs to it")
    context: JSONObject = {"ticket": _tickets()[ticket_id]}
    saved = SavedResults(connection, story.run_id)
    action: str | None = next(iter(ACTIONS))
    while action is not None and action != until:
        try:
            context = _performed(action, context, saved)
        except LessonError:
            break
        action = ACTIONS[action][1]
    return RunState(
        run_id=story.run_id,
        ticket_id=ticket_id,
        status="completed" if action is None else "running",
        next_action=action,
        context_json=to_json(context, "context"),
        version=_version_before(story, action),
    )


def reused_results(connection: AgentConnection, story: Story, state: RunState) -> tuple[str, ...]:
    """Return the keys whose saved results the actions to come will get.

    They are performed for a try, with the saved results in place of the tools.

    Raises:
        CheckpointError: A result is lost although its tool ran, or it does not fit.
    """
    saved = SavedResults(connection, story.run_id)
    context: JSONObject | None = dict(state.context)
    for action in dropwhile(lambda a: a != state.next_action, ACTIONS):
        try:
            if context is None:  # what a tool will answer before this action is not known
                saved.of(action, None)
            else:
                context = _performed(action, context, saved)
        except _NotSavedError as error:
            if f"{story.run_id}:{action}" in story.results:
                raise CheckpointError(
                    f"a saved result is lost, and its tool ran: {story.run_id}:{action}"
                ) from error
            context = None
        except CheckpointError:
            raise
        except LessonError as error:
            raise CheckpointError(f"{action} cannot be done with what is saved: {error}") from error
    return tuple(saved.used)


def _performed(action: str, context: JSONObject, saved: SavedResults) -> JSONObject:
    found = context | ACTIONS[action][0](context, saved)
    schema.check(found)
    return found


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
