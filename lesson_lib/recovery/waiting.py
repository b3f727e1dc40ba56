"""What is not on disk yet: an event of a run with its payload, or with a summary of that."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from lesson_lib.errors import (
    IdempotencyConflictError,
    JSONValueError,
    StorageError,
    ToolResultError,
)
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import RunState, ToolResult
from lesson_lib.stores.sqlite import AgentConnection, read_events, record_event


@dataclass(frozen=True)
class Waiting:
    """An event that is not on disk yet, with what belongs to it.

    Args:
        run_id: Its run.
        session: Who made it.
        event_type: `checkpoint_saved`, `tool_executed` or `tool_reused`.
        action: The action, or the name of the tool.
        name: `version 2`, or the idempotency key.
        next_action: Of a checkpoint; None for a tool, and for the last checkpoint.
        sha256: The digest of the state's context, or of the tool's input, in hex.
        payload: The whole state, or the result as JSON text; None in a summary.
    """

    run_id: str
    session: str
    event_type: str
    action: str
    name: str
    next_action: str | None
    sha256: str
    payload: RunState | str | None = field(repr=False)

    @property
    def form(self) -> str:
        """Either "whole" or "summary"."""
        return "summary" if self.payload is None else "whole"


def result_of(event: Waiting, tool_name: str, digest: str) -> ToolResult:
    """Return the result that waits under a key.

    Args:
        event: The tool call's.
        tool_name: The tool that is asked for.
        digest: The digest of the tool's input.

    Raises:
        IdempotencyConflictError: The tool or the input was another.
        StorageError: The result was dropped.
    """
    if (event.action, event.sha256) != (tool_name, digest):
        raise IdempotencyConflictError(
            f"the key {event.name} was used with another input or tool: a new intention needs a new"
            " key"
        )
    if not isinstance(event.payload, str):
        raise StorageError(
            f"the tool of {event.name} was called, and its result was dropped from a full buffer:"
            " take it from the state"
        )
    return ToolResult(event.name, event.action, from_json(event.payload), reused=True)


def write_tool_event(connection: AgentConnection, event: Waiting) -> None:
    """Write a tool's event, with its result where that is new, inside the caller's transaction.

    Raises:
        IdempotencyConflictError: Another session has saved a result under this key.
    """
    if event.event_type == "tool_executed" and event.payload is not None:
        added = connection.execute(
            "INSERT INTO tool_effects VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (event.name, event.run_id, event.action, event.sha256, event.payload),
        )
        if added.rowcount != 1:
            raise IdempotencyConflictError(
                f"{event.name} got a result from another session while this one waited: that one"
                " counts. Recover the run"
            )
    record(connection, event, event.event_type, {"key": event.name})


def is_on_disk(connection: AgentConnection, waiting: Sequence[Waiting]) -> bool:
    """Return whether these events are the last of their kinds on disk, by the same session."""
    kinds = {"checkpoint_saved", "tool_executed", "tool_reused"}
    last = [e for e in read_events(connection, waiting[0].run_id) if e.event_type in kinds]
    found = []
    for event in last[-len(waiting) :]:
        told = from_json(event.detail)
        name = told.get("key", f"version {told.get('version')}")
        found.append((event.session, event.event_type, event.action, name))
    return found == [(w.session, w.event_type, w.action, w.name) for w in waiting]


def record(
    connection: AgentConnection, event: Waiting, event_type: str, detail: JSONObject
) -> None:
    """Record an event of this type in the name of one that waits."""
    record_event(
        connection,
        run_id=event.run_id,
        session=event.session,
        event_type=event_type,
        action=event.action,
        detail=detail,
    )


def result_json(key: str, value: JSONValue) -> str:
    """Return a tool's result as JSON text.

    Raises:
        ToolResultError: The tool ran, but its result is not JSON.
    """
    try:
        return to_json(value, "result")
    except JSONValueError as error:
        raise ToolResultError(
            f"the tool of {key} ran, but its result cannot be kept: {error}"
        ) from error


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()
