"""The ladder: what to go on from when no kept checkpoint can be trusted, step by step down."""

from __future__ import annotations

from itertools import dropwhile

from lesson_lib.agent import ACTIONS
from lesson_lib.checkpoints import schema
from lesson_lib.errors import CheckpointError, LessonError
from lesson_lib.model import RunState
from lesson_lib.recovery.rebuild import rebuild
from lesson_lib.recovery.story import Story, check_siblings
from lesson_lib.recovery.trust import Judgement
from lesson_lib.stores.sqlite import AgentConnection

STEPS = (
    "newest checkpoint",
    "older checkpoint",
    "agent_runs alone",
    "rebuilt from events",
    "restarted from the ticket",
    "handed to a person",
)


def choose(
    connection: AgentConnection, story: Story, judged: Judgement, row: RunState | None
) -> tuple[str, RunState, str]:
    """Return the step of the ladder, the state to go on with, and what is lost with it.

    Args:
        connection: An open connection.
        story: The events of the run.
        judged: What came of looking through its archive.
        row: What its row in `agent_runs` holds, None where that is no state.

    Raises:
        CheckpointError: Nothing can be trusted.
    """
    if judged.chosen is not None and judged.chosen.state is not None:
        state = judged.chosen.state
        return STEPS[0] if state.version == story.newest else STEPS[1], state, ""
    if row is not None and row.next_action not in (*ACTIONS, None):
        raise CheckpointError(f"this agent does not know its next action {row.next_action!r}")
    try:
        until = story.next_after(story.newest)
        step, lost = STEPS[3], "what no event and no saved result holds is lost"
    except CheckpointError:
        until = next(iter(ACTIONS))
        step, lost = STEPS[4], "its progress is lost, its saved results are not"
    rebuilt = rebuild(connection, story, until)
    if row is not None and _confirmed(row, rebuilt, story):
        return STEPS[2], row, "it has no checksum: events and saved results agree with it"
    return step, rebuilt, lost


def _confirmed(row: RunState, rebuilt: RunState, story: Story) -> bool:
    """Return whether the row fits its events, and agrees with what they and the results tell."""
    try:
        schema.check(row.context)
        check_siblings(row, story)
    except LessonError:
        return False
    agrees = all(row.context.get(name) == value for name, value in rebuilt.context.items())
    return row.version == story.newest and agrees


def keys_to_come(connection: AgentConnection, state: RunState) -> list[str]:
    """Return the keys of saved results that the actions still to come will ask for."""
    if state.next_action is None:
        return []
    keys = [f"{state.run_id}:{a}" for a in dropwhile(lambda a: a != state.next_action, ACTIONS)]
    find = "SELECT 1 FROM tool_effects WHERE idempotency_key = ?"
    return [key for key in keys if connection.execute(find, (key,)).fetchone()]
