"""Which kept checkpoint can be trusted: each is judged by its bytes, its event and its rivals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from lesson_lib.checkpoints.archive import Kept
from lesson_lib.model import RunState
from lesson_lib.recovery.told import Told


@dataclass(frozen=True)
class Refused:
    """A checkpoint that was not trusted, and why.

    What its content says stands behind the first colon: a trace must not keep that.
    """

    version: int
    reason: str


@dataclass(frozen=True)
class Judged:
    """What came of looking through an archive: the newest that can be trusted, and the others."""

    kept: tuple[Kept, ...]
    chosen: Kept | None
    refused: tuple[Refused, ...]


def judge(kept: tuple[Kept, ...], told: Told, begin: RunState | None) -> Judged:
    """Look through the kept checkpoints of a run, newest first; `begin` is what it began with."""
    versions: dict[int, list[Kept]] = defaultdict(list)
    for each in kept:
        versions[each.version].append(each)
    refused, chosen = list[Refused](), None
    # Without any row it is a run of part one, and nothing is missing.
    for version in sorted({*versions, *range(told.newest + 1)} if versions else (), reverse=True):
        rows = versions[version]
        problems = [each.problem or misfit(each.state, told, begin) for each in rows]
        fit = [each for each, problem in zip(rows, problems, strict=True) if not problem]
        rivals = {each.state for each in rows if each.state is not None}
        if not rows and chosen is None:  # an older one may have been removed to save space
            problems = ["no checkpoint of it is kept"]
        if len(rivals) > 1:
            # Also one that does not fit: nobody can tell which of them was acknowledged.
            count, fit = len(rivals), []
            problems.append(f"{count} checkpoints of it have different contents: none is trusted")
        refused += [Refused(version, problem) for problem in problems if problem]
        chosen = chosen or next(iter(fit), None)
    return Judged(
        tuple(each for rows in versions.values() for each in rows), chosen, tuple(refused)
    )


def misfit(state: RunState | None, told: Told, begin: RunState | None) -> str:
    """Return what does not belong together in a state, its run and its event; empty: all does.

    Its fields rest on each other in the order of the agent's actions.
    """
    if state is None:
        return "it is no state"
    if begin is not None and state.ticket_id != begin.ticket_id:
        return f"it is of another run: of the ticket {state.ticket_id}"
    if state.version not in told.made:
        is_later = state.version > told.newest
        return "no event tells of it" if is_later else "its event does not say what was done"
    fields = [action.makes for action in told.agent.actions.values()]
    found = [name for name in fields if name in state.context]
    if found != fields[: len(found)]:
        return f"it holds a field without the one that it rests on: {found[-1]} is the last"
    fitting, wanted = [*told.agent.actions, None][len(found)], told.next_after(state.version)
    if state.next_action != fitting and not (told.is_abandoned and wanted is None):
        return f"its next action does not fit: it is {state.next_action}, not {fitting}"
    if state.next_action != wanted:
        return f"its event does not fit: {wanted} would be next, here it is {state.next_action}"
    return ""
