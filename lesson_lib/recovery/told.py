"""What the events of a run tell: its versions, what made each, which results were saved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lesson_lib.agent import Agent, tool_key
from lesson_lib.json_text import JSONObject, from_json
from lesson_lib.model import Event

RECOVER, ABANDON = "recover", "abandon"  # they save checkpoints, and are no actions of an agent


@dataclass(frozen=True)
class Told:
    """The events of a run, read by the actions of its agent.

    The n-th saved checkpoint is version n, and its event names the action that made it: what came
    next is what that action leads to. So an agent whose actions choose the next one themselves,
    by a whole `Step`, cannot be read this way.
    """

    run_id: str
    events: tuple[Event, ...]
    agent: Agent

    @cached_property
    def saved(self) -> list[Event]:
        """The events of the saved checkpoints, that of version 1 first."""
        return [event for event in self.events if event.event_type == "checkpoint_saved"]

    @property
    def newest(self) -> int:
        """The version of the last saved checkpoint."""
        return len(self.saved)

    @cached_property
    def made(self) -> dict[int, Event | None]:
        """The event that made the content of each version that it tells enough of, None for 0.

        A recovery makes no content: it takes that of another version.
        """
        made: dict[int, Event | None] = {0: None}
        for version, event in enumerate(self.saved, 1):
            said = _detail(event)
            source = said.get("from_version")
            if said.get("version") != version:
                continue
            if event.action in (*self.agent.actions, ABANDON):
                made[version] = event
            elif event.action == RECOVER and type(source) is int and source in made:
                made[version] = made[source]
        return made

    @property
    def problem(self) -> str:
        """Why nobody can tell from the events what was acknowledged; empty if all is well."""
        said = [_detail(event).get("version") for event in self.saved]
        latest = max((version for version in said if type(version) is int), default=0)
        sequences = [event.sequence for event in self.events]
        if sequences != list(range(1, len(sequences) + 1)) or latest > self.newest:
            return "an event is missing, and nobody can tell which"
        known = (*self.agent.actions, RECOVER, ABANDON)
        unknown = [event.action for event in self.saved if event.action not in known]
        return f"this agent does not know its action: {unknown[0]!r}" if unknown else ""

    @property
    def is_abandoned(self) -> bool:
        """Whether somebody ended the run that nobody would go on with."""
        return any(event.action == ABANDON for event in self.saved)

    def next_after(self, version: int) -> str | None:
        """Return the action that was next after a version in `made`; None after the last."""
        event = self.made[version]
        if event is None:
            return next(iter(self.agent.actions))
        return None if event.action == ABANDON else self.agent.actions[event.action].next_action

    def after(self, version: int) -> tuple[Event, ...]:
        """Return the events since the content of a version was made: it holds nothing of theirs."""
        event = self.made.get(version)
        return self.events[event.sequence if event else 0 :]

    def keys_after(self, version: int) -> set[str]:
        """Return the keys of the results that were saved since then."""
        return {
            str(_detail(event).get("key") or tool_key(self.run_id, event.action))
            for event in self.after(version)
            if event.event_type in ("tool_executed", "tool_reused")
        }


def _detail(event: Event) -> JSONObject:
    try:
        detail = from_json(event.detail)
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}
