"""The ladder: what to go on from when no kept checkpoint can be trusted, step by step down."""

from __future__ import annotations

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
    trusted = judged.chosen.state if judged.chosen else None
    if trusted is not None and trusted.version == story.newest:
        return STEPS[0], trusted, ""
    # A newest version that nobody kept is no damage: not every `save` keeps.
    may_stand_alone = trusted is None or story.newest not in judged.versions()
    if may_stand_alone and row is not None and _is_confirmed(connection, row, story):
        return STEPS[2], row, "it has no checksum: events and saved results agree with it"
    if story.is_abandoned:
        raise CheckpointError("it was given up, and its last state cannot be trusted")
    if trusted is not None:
        return STEPS[1], trusted, ""
    if row is not None and row.next_action not in (*ACTIONS, None):
        raise CheckpointError(f"this agent does not know its next action: {row.next_action!r}")
    try:
        until = story.next_after(story.newest)
        step, lost = STEPS[3], "what no event and no saved result holds is lost"
    except CheckpointError:
        until = next(iter(ACTIONS))
        step, lost = STEPS[4], "its progress is lost, its saved results are not"
    return step, rebuild(connection, story, until), lost


def _is_confirmed(connection: AgentConnection, row: RunState, story: Story) -> bool:
    """Return whether the row fits its events, and agrees with what they and the results tell."""
    try:
        schema.check(row.context)
        check_siblings(row, story)
        rebuilt = rebuild(connection, story, row.next_action).context
    except LessonError:
        return False
    agrees = all(rebuilt.get(name, value) == value for name, value in row.context.items())
    return (row.run_id, row.version) == (story.run_id, story.newest) and agrees
