"""What is known of a run: its state, the step to the next one, its events, its tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from lesson_lib.errors import InvalidStateError, RunCompletedError
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json

if TYPE_CHECKING:
    from lesson_lib.store import Rider

STATUSES = ("running", "completed")


@dataclass(frozen=True)
class RunState:
    """One row of `agent_runs`: the current checkpoint of a run.

    Args:
        run_id: The name of the run.
        ticket_id: The ticket it works on.
        status: One of `STATUSES`.
        next_action: What to do next; None when, and only when, the run is completed.
        context_json: What the agent has found out so far, as the text of a JSON object.
        version: How many checkpoints were saved, 0 for a run that has none yet.

    Raises:
        InvalidStateError: A value breaks one of these rules.
    """

    run_id: str
    ticket_id: str
    status: str
    next_action: str | None
    context_json: str
    version: int

    def __post_init__(self) -> None:
        for name in ("run_id", "ticket_id", "context_json"):
            require_text(name, getattr(self, name))
        if self.status not in STATUSES:
            raise InvalidStateError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if (self.next_action is None) != (self.status == "completed"):
            raise InvalidStateError(
                f"a run with status {self.status!r} cannot have the next action"
                f" {self.next_action!r}: only a completed run has none"
            )
        if self.next_action is not None:
            require_text("next_action", self.next_action)
        if type(self.version) is not int or not 0 <= self.version < 2**63 - 1:
            raise InvalidStateError(f"version {self.version!r} is not a whole number from 0 up")
        try:
            is_object = isinstance(from_json(self.context_json), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise InvalidStateError(f"the context of {self.run_id} is not a JSON object")

    @classmethod
    def begin(
        cls, run_id: str, ticket_id: str, first_action: str, context: Mapping[str, JSONValue]
    ) -> Self:
        """Return the state that a run begins with, version 0.

        Raises:
            InvalidStateError: A name is no usable text.
            JSONValueError: The context would not survive the round trip.
        """
        context_json = to_json(dict(context), "context")
        return cls(run_id, ticket_id, "running", first_action, context_json, version=0)

    def after(self, step: Step) -> Self:
        """Return the state that a step leads to, one version on. This one never changes.

        Raises:
            RunCompletedError: The run is finished: nothing comes after it.
            InvalidStateError: What is to grow is no list, or is replaced by the same step.
            JSONValueError: What the step found would not survive the round trip.
        """
        self.require_unfinished()
        context, grown = self.context, {}
        for name, more in step.appended.items():
            before = context.get(name, [])
            if type(before) is not list or type(more) not in (list, tuple) or name in step.found:
                raise InvalidStateError(
                    f"{name} cannot grow by {more!r:.40}: both must be lists, and the step must not"
                    " find it as well"
                )
            grown[name] = [*before, *more]
        return replace(
            self,
            status="completed" if step.next_action is None else "running",
            next_action=step.next_action,
            context_json=to_json({**context, **step.found, **grown}, "context"),
            version=self.version + 1,
        )

    def require_unfinished(self) -> None:
        """Do nothing for a run that has a next action.

        Raises:
            RunCompletedError: The run is finished.
        """
        if self.next_action is None:
            raise RunCompletedError(
                f"{self.run_id} is completed, at version {self.version}: its reply is in the"
                " context"
            )

    @property
    def context(self) -> MappingProxyType[str, JSONValue]:
        """A decoded copy of the context, read-only: a changed one is `state.context | {...}`."""
        decoded: JSONObject = from_json(self.context_json)
        return MappingProxyType(decoded)


@dataclass(frozen=True)
class Step:
    """What an action did: its name, what it found, and what comes next.

    Args:
        action: The action that was completed.
        found: What it adds to the context, or replaces there, by name.
        next_action: The action to do next; None completes the run.
        because: What the step rests on, in words.
        appended: Lists of the context that grow, each with its new items.
        riders: What must be true together with this checkpoint.
    """

    action: str
    found: JSONObject
    next_action: str | None
    because: str = ""
    appended: Mapping[str, Sequence[JSONValue]] = field(default_factory=dict)
    riders: tuple[Rider, ...] = ()


@dataclass(frozen=True)
class Event:
    """One row of `agent_events`: something that happened, at its place in the run's order.

    `sequence` counts from 1 without a gap; `created_at_utc` is for people, never for sorting.
    """

    run_id: str
    sequence: int
    session: str
    event_type: str
    action: str
    detail: str
    created_at_utc: str


@dataclass(frozen=True)
class ToolCall:
    """A tool call that is about to be made.

    Args:
        run_id: The run that asks; it must exist.
        key: The idempotency key: the same for every repeat of the same intended call.
        tool_name: The tool's name.
        tool_input: The tool's arguments, a JSON value.
        function: The call itself, without arguments; it returns a JSON value.
    """

    run_id: str
    key: str
    tool_name: str
    tool_input: JSONValue
    function: Callable[[], JSONValue]


@dataclass(frozen=True)
class ToolResult:
    """What `execute_once` returns: the tool's value and whether it was saved before."""

    idempotency_key: str
    tool_name: str
    value: JSONValue
    reused: bool


def input_digest(tool_input: JSONValue) -> str:
    """Return the SHA-256 by which a tool's input is known again, in hexadecimal digits.

    Raises:
        JSONValueError: The input is not JSON.
    """
    return hashlib.sha256(to_json(tool_input, "tool_input").encode()).hexdigest()


def require_text(name: str, value: object) -> str:
    """Return `value` if it is text that a database can hold.

    Args:
        name: What the value is called in the error.
        value: The value to look at.

    Raises:
        InvalidStateError: It is no `str`, is empty, or holds a lone surrogate.
    """
    if not isinstance(value, str) or not value:
        raise InvalidStateError(f"{name} must be non-empty text, not {value!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidStateError(
            f"{name} {value!r} holds a lone surrogate, which no UTF-8 file can hold"
        ) from None
    return value
