"""The steps of a recovery, in order: each decides how a run goes on, or leaves it to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lesson_lib.agent import Agent
from lesson_lib.errors import CheckpointError, LessonError
from lesson_lib.model import RunState
from lesson_lib.recovery.judging import Judged, misfit
from lesson_lib.recovery.rebuilding import SavedResults, rebuild
from lesson_lib.recovery.told import Told


@dataclass(frozen=True)
class Case:
    """What is known of a run when it is decided how it goes on.

    `unsettled` are the keys of calls without an answer. `row` is what `agent_runs` holds and
    `begin` what the agent begins with, None where that is no state.
    """

    agent: Agent
    unsettled: list[str]
    told: Told
    judged: Judged
    saved: SavedResults
    row: RunState | None
    begin: RunState | None


@dataclass(frozen=True)
class Decision:
    """The state to go on with, None for a run that must not go on now, and what is to be said."""

    state: RunState | None
    reason: str = ""


@dataclass(frozen=True)
class RecoveryStep:
    """A step, when it is taken, and what decides; a CheckpointError of it leads to the last one."""

    name: str
    when: str
    decide: Callable[[Case], Decision | None]


def _effects_first(case: Case) -> Decision | None:
    keys = ", ".join(case.unsettled)
    reason = f"nobody knows yet what became of {keys}: settle it, then recover"
    return Decision(None, reason) if keys else None


def _update_first(case: Case) -> Decision | None:
    oldest = case.judged.chosen.version if case.judged.chosen else 0
    for kept in case.judged.kept:
        if kept.schema_version > case.agent.schema.current and kept.version >= oldest:
            wrote = f"a later package wrote version {kept.version}"
            return Decision(None, f"{wrote}: update this one, then recover")
    return None


def _events_first(case: Case) -> Decision | None:
    problem, told = case.told.problem, case.told
    for kept in case.judged.kept:
        if case.row and kept.state and kept.version == case.row.version > told.newest:
            problem = problem or f"the event of version {kept.version} is missing"
    return Decision(None, problem) if problem else None


def _newest_checkpoint(case: Case) -> Decision | None:
    kept = case.judged.chosen
    return Decision(kept.state) if kept and kept.version == case.told.newest else None


def _row_alone(case: Case) -> Decision | None:
    newest_is_kept = any(kept.version == case.told.newest for kept in case.judged.kept)
    if (case.judged.chosen and newest_is_kept) or not _is_confirmed(case):
        return None
    return Decision(case.row, "it has no checksum: events and saved results agree with it")


def _is_confirmed(case: Case) -> bool:
    """Return whether the row fits its event, and agrees with what can be rebuilt."""
    row, told, begin = case.row, case.told, case.begin
    if row is None or begin is None or row.version != told.newest or misfit(row, told, begin):
        return False
    try:
        case.agent.schema.check(row.context)
    except LessonError:
        return False
    rebuilt = rebuild(told, case.saved, begin, row.next_action).context
    return all(rebuilt.get(name, value) == value for name, value in row.context.items())


def _older_checkpoint(case: Case) -> Decision | None:
    if case.told.is_abandoned:
        raise CheckpointError("it was given up, and its last state cannot be trusted")
    return Decision(case.judged.chosen.state) if case.judged.chosen else None


def _rebuilt(case: Case) -> Decision | None:
    told = case.told
    if case.row is not None and case.row.next_action not in (*case.agent.actions, None):
        raise CheckpointError(f"this agent does not know its next action: {case.row.next_action!r}")
    if case.begin is None or told.newest not in told.made:
        return None
    state = rebuild(told, case.saved, case.begin, told.next_after(told.newest))
    return Decision(state, "what no event and no saved result holds is lost")


def _restarted(case: Case) -> Decision | None:
    reason = "its progress is lost, its saved results are not"
    return Decision(case.begin, reason) if case.begin else None


def _handed_over(case: Case) -> Decision | None:
    return Decision(None, "nobody knows what it began with")


PERSON = "handed to a person"
STEPS = (
    RecoveryStep("effects first", "a call has no answer yet", _effects_first),
    RecoveryStep("update first", "a later package wrote the newest", _update_first),
    RecoveryStep(PERSON, "an event is missing, or another agent's", _events_first),
    RecoveryStep("newest checkpoint", "it is kept, and can be trusted", _newest_checkpoint),
    RecoveryStep(
        "agent_runs alone", "it is not kept, or nothing kept is whole; all else agrees", _row_alone
    ),
    RecoveryStep("older checkpoint", "it is kept, and can be trusted", _older_checkpoint),
    RecoveryStep("rebuilt from events", "they tell how far the run was", _rebuilt),
    RecoveryStep("restarted from the ticket", "how it begins is known", _restarted),
    RecoveryStep(PERSON, "nothing is left to go on from", _handed_over),
)
