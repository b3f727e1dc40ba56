"""What the events of a run tell: which versions were saved, by which action, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lesson_lib.agent import ACTIONS, run_id_for
from lesson_lib.errors import CheckpointError, CorruptStateError, UnknownRunError
from lesson_lib.json_text import from_json
from lesson_lib.model import Event, RunState
from lesson_lib.stores.sqlite import AgentConnection

MAKES = {
    "classify_priority": "priority",
    "lookup_runbook": "runbook",
    "draft_reply": "draft",
    "finish": "reply",
}
# What is next after each action that makes a version's content; nothing is after the run's end.
LEADS_TO: dict[str, str | None] = {
    "start": next(iter(ACTIONS)),
    **{action: following for action, (_, following) in ACTIONS.items()},
    "abandon": None,
}
COLUMNS = "run_id, sequence, session, event_type, action, detail, created_at_utc"
KINDS = (str, int, str, str, str, str, str, int)
# By the row itself; and what the index says of it, which is all that other readers go by.
BY_ROW = f"""SELECT {COLUMNS}, rowid FROM agent_events NOT INDEXED
    WHERE run_id = ? ORDER BY sequence"""
BY_INDEX = """SELECT run_id, sequence, rowid FROM agent_events
    INDEXED BY sqlite_autoindex_agent_events_1 WHERE run_id = ? ORDER BY sequence"""


@dataclass(frozen=True)
class Story:
    """The events of a run, and what can be read out of them.

    `newest` is the version that the last of the saved checkpoints has: their number.
    """

    run_id: str
    events: tuple[Event, ...]
    newest: int

    @cached_property
    def has_gap(self) -> bool:
        """Whether a sequence is missing, or the event of a version before another's."""
        sequences = [event.sequence for event in self.events]
        wanted = list(range(1, len(sequences) + 1)) or [1]
        return sequences != wanted or max(self._saved, default=0) > self.newest

    @cached_property
    def unknown_action(self) -> str | None:
        """An action that saved a checkpoint and is none of this agent's, None for none."""
        known = {*LEADS_TO, "recover"}
        return next((action for action in self._actions if action not in known), None)

    @cached_property
    def is_abandoned(self) -> bool:
        """Whether somebody ended the run that nobody would go on with."""
        return "abandon" in self._actions

    @cached_property
    def results(self) -> frozenset[str]:
        """The keys that have a saved result, as the events tell."""
        saved: set[str] = set()
        for event in self.events:  # in order: a result that was dropped may have come again
            if event.event_type in ("tool_executed", "tool_reused"):
                saved.add(f"{self.run_id}:{event.action}")
            elif event.event_type == "payload_not_kept":
                saved.discard(str(_told(event).get("key")))
        return frozenset(saved)

    def next_after(self, version: int) -> str | None:
        """Return the action that was next after a version; None after the last.

        Raises:
            CheckpointError: Not one event tells of it, or it does not say enough.
        """
        if version not in self._made_by:
            problems = {0: "no event tells of it", 1: "its event does not say what was done"}
            told = len(self._saved.get(version, ()))
            raise CheckpointError(problems.get(told, "several events tell of it"))
        return LEADS_TO[self._made_by[version]]

    def after(self, version: int) -> tuple[Event, ...]:
        """Return the events after the one that tells of a version."""
        told = self._saved.get(version, ())
        return self.events[max((event.sequence for event, _ in told), default=0) :]

    @cached_property
    def _actions(self) -> list[str]:
        return [event.action for event in self.events if event.event_type == "checkpoint_saved"]

    @cached_property
    def _saved(self) -> dict[int, list[tuple[Event, dict[str, object]]]]:
        """The events that tell of a version, with their details: one, where all is well."""
        saved: dict[int, list[tuple[Event, dict[str, object]]]] = {}
        for event in self.events:
            if event.event_type == "checkpoint_saved":
                told = _told(event)
                if type(version := told.get("version")) is int:
                    saved.setdefault(version, []).append((event, told))
        return saved

    @cached_property
    def _made_by(self) -> dict[int, str]:
        """The action that made the content of each version; what cannot be told is missing."""
        made = {0: "start"}
        for version, told in sorted(self._saved.items()):
            if version > 0 and len(told) == 1:
                event, detail = told[0]
                action = event.action
                if action == "recover":
                    source = detail.get("from_version")
                    action = made.get(source, "") if type(source) is int else ""
                if action in LEADS_TO:
                    made[version] = action
        return made


def read_story(connection: AgentConnection, run_id: str) -> Story:
    """Return what the events of a run tell; mend the index where the rows are whole without it.

    Raises:
        UnknownRunError: There are none.
        CorruptStateError: An event holds a value of another type.
    """
    rows = [tuple(row) for row in connection.execute(BY_ROW, (run_id,)).fetchall()]
    indexed = [tuple(row) for row in connection.execute(BY_INDEX, (run_id,)).fetchall()]
    if not rows and not indexed:
        raise UnknownRunError(f"{connection.path} holds no run {run_id!r}: start it first")
    if any(tuple(map(type, row)) != KINDS for row in rows):
        raise CorruptStateError(f"an event of {run_id} is damaged. Restore a backup")
    events = tuple(Event(*row[:-1]) for row in rows)
    saved = sum(event.event_type == "checkpoint_saved" for event in events)
    story = Story(run_id, events, saved)
    if [(*row[:2], row[-1]) for row in rows] != indexed and not story.has_gap:
        connection.execute("REINDEX agent_events")
    return story


def check_siblings(state: RunState, story: Story) -> None:
    """Do nothing for a state whose fields belong together, and to its run and its event.

    Raises:
        CheckpointError: One of them stands without the other.
    """
    if run_id_for(state.ticket_id) != story.run_id:
        raise CheckpointError(f"it is of another run: of the ticket {state.ticket_id}")
    fields = list(MAKES.values())
    found = [name for name in fields if name in state.context]
    if found != fields[: len(found)]:
        missing = next(name for name in fields if name not in found)
        raise CheckpointError(
            f"it holds a field without the one that it rests on: {found[-1]} without {missing}"
        )
    told = story.next_after(state.version)
    fitting = None if story.is_abandoned and told is None else [*MAKES, None][len(found)]
    if state.next_action != fitting:
        holds = found[-1] if found else "ticket"
        raise CheckpointError(
            f"its next action does not fit: it is {state.next_action}, and the {holds} is the last"
            " that it holds"
        )
    if state.next_action != told:
        raise CheckpointError(
            f"its event does not fit: {told} would be next, here it is {state.next_action}"
        )


def _told(event: Event) -> dict[str, object]:
    try:
        detail = from_json(event.detail)
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}
