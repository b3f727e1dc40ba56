"""What the events of a run tell: which versions were saved, by which action, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from lesson_lib.agent import ACTIONS, run_id_for
from lesson_lib.errors import CheckpointError
from lesson_lib.json_text import from_json
from lesson_lib.model import Event, RunState
from lesson_lib.stores.sqlite import AgentConnection, read_events

MAKES = {
    "classify_priority": "priority",
    "lookup_runbook": "runbook",
    "draft_reply": "draft",
    "finish": "reply",
}


@dataclass(frozen=True)
class Story:
    """The events of a run, and what can be read out of them.

    `newest` is the version that the last of the saved checkpoints has: their number.
    """

    run_id: str
    events: tuple[Event, ...]
    newest: int

    @property
    def has_gap(self) -> bool:
        """Whether a sequence is missing, or the event of a version before another's."""
        sequences = [event.sequence for event in self.events]
        told = [_told(event).get("version") for event in self._saved]
        return sequences != list(range(1, len(sequences) + 1)) or any(
            type(version) is int and version > self.newest for version in told
        )

    @property
    def _saved(self) -> list[Event]:
        return [event for event in self.events if event.event_type == "checkpoint_saved"]

    @property
    def unknown_action(self) -> str | None:
        """An action that saved a checkpoint and is none of this agent's, None for none."""
        known = {*ACTIONS, "recover"}
        return next((event.action for event in self._saved if event.action not in known), None)

    def events_of(self, version: int) -> list[Event]:
        """Return the events that tell of a version: one, where all is well."""
        if version == 0:
            return [event for event in self.events if event.event_type == "run_started"]
        return [event for event in self._saved if _told(event).get("version") == version]

    def next_after(self, version: int) -> str | None:
        """Return the action that was next after a version; None after the last.

        Raises:
            CheckpointError: Not one event tells of it, or it does not say enough.
        """
        found = self.events_of(version)
        if len(found) != 1:
            raise CheckpointError("several events tell of it" if found else "no event tells of it")
        (event,) = found
        if version == 0:
            return next(iter(ACTIONS))
        if event.action in ACTIONS:
            return ACTIONS[event.action][1]
        source = _told(event).get("from_version")
        if type(source) is not int or not 0 <= source < version:
            raise CheckpointError(f"its event does not say what {event.action!r} did")
        return self.next_after(source)

    def after(self, version: int) -> tuple[Event, ...]:
        """Return the events after the one that tells of a version."""
        return self.events[max((e.sequence for e in self.events_of(version)), default=0) :]


def read_story(connection: AgentConnection, run_id: str) -> Story:
    """Return what the events of a run tell.

    Raises:
        UnknownRunError: There are none.
    """
    events = tuple(read_events(connection, run_id))
    saved = sum(event.event_type == "checkpoint_saved" for event in events)
    return Story(run_id, events, saved)


def check_siblings(state: RunState, story: Story) -> None:
    """Do nothing for a state whose fields belong together, and to its run and its event.

    Raises:
        CheckpointError: One of them stands without the other.
    """
    if run_id_for(state.ticket_id) != story.run_id:
        raise CheckpointError(f"it is of the ticket {state.ticket_id}, so of another run")
    fields = list(MAKES.values())
    found = [name for name in fields if name in state.context]
    if found != fields[: len(found)]:
        missing = next(name for name in fields if name not in found)
        raise CheckpointError(f"it holds a {found[-1]} without the {missing} that it rests on")
    fitting = [*MAKES, None][len(found)]
    if state.next_action != fitting:
        holds = found[-1] if found else "ticket"
        raise CheckpointError(
            f"its next action does not fit: it is {state.next_action}, and the {holds} is the last"
            " that it holds"
        )
    if state.next_action != story.next_after(state.version):
        raise CheckpointError(
            f"its event does not fit: {story.next_after(state.version)} would be next, here it is"
            f" {state.next_action}"
        )


def _told(event: Event) -> dict[str, object]:
    try:
        detail = from_json(event.detail)
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}
