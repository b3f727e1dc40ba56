"""Killing an agent at every point, resuming it, and comparing with a run that nobody disturbed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from lesson_lib.errors import ChildError
from lesson_lib.sweep.sessions import run_session


@dataclass(frozen=True)
class Target:
    """An agent that can be killed: how to run it in a folder, and what to ask of the folder.

    Args:
        entry: What starts or resumes it and goes on to the end; see `run_session`.
        look: What a new process finds in the folder after a death, in a few named figures.
        end: What must be the same whether a session died or not.
        calls: What the witness saw: a name for each real call of a tool.
    """

    entry: str
    look: Callable[[Path], Mapping[str, Any]]
    end: Callable[[Path], object]
    calls: Callable[[Path], Sequence[str]]


@dataclass(frozen=True)
class Undisturbed:
    """A run without a crash: where its files are, the points it passed, what it left."""

    target: Target
    folder: Path
    points: tuple[str, ...]
    end: object
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of a death.

    Args:
        number: Which point of the run without a crash it was, from 1.
        point: Its label.
        left: What a new process found after it.
        repeated: The calls that were really made more often than without a crash.
        same_end: Whether the end is the same, and no call is missing.
        recovery: The crash points that the last session passed.
    """

    number: int
    point: str
    left: Mapping[str, Any]
    repeated: tuple[str, ...]
    same_end: bool
    recovery: tuple[str, ...] = field(repr=False)


def run_undisturbed(target: Target, folder: Path) -> Undisturbed:
    """Run an agent without a crash, in a child process; what was in the folder goes.

    Raises:
        ChildError: It failed, or there is no point to kill it at.
    """
    if folder.exists():
        shutil.rmtree(folder)
    points = run_session(target.entry, folder, "session-1")
    if not points:
        raise ChildError(f"{target.entry} passed no crash point: give its `point` to a hook")
    calls = tuple(target.calls(folder))
    return Undisturbed(target, folder, tuple(points), target.end(folder), calls)


def kill_and_resume(whole: Undisturbed, point: str, *later: str) -> Outcome:
    """Kill a session at a point, look at the disk, let the next session finish, and compare.

    Args:
        whole: The run without a crash.
        point: Where session-1 dies.
        later: Where session-2, session-3, ... die; the last session lives. The files of all are
            left in the folder `killed` beside that of the run without a crash.

    Raises:
        ChildError: A session did not come to its point, or the last one could not finish the run.
    """
    if point not in whole.points:
        raise ChildError(f"no run comes to {point!r}: choose one of the points it passed")
    target, folder = whole.target, whole.folder.with_name("killed")
    if folder.exists():
        shutil.rmtree(folder)
    for number, die_at in enumerate((point, *later, None), start=1):
        try:
            recovery = run_session(target.entry, folder, f"session-{number}", die_at)
        except ChildError as error:
            raise ChildError(f"after a death at {point!r}, {error}") from error
        if number == 1:
            left = target.look(folder)
    calls, wanted = Counter(target.calls(folder)), Counter(whole.calls)
    return Outcome(
        number=whole.points.index(point) + 1,
        point=point,
        left=left,
        repeated=tuple(sorted(calls - wanted)),
        same_end=target.end(folder) == whole.end and calls >= wanted,
        recovery=tuple(recovery),
    )


def kill_everywhere(whole: Undisturbed, every: int = 1) -> list[Outcome]:
    """Kill a session at each crash point, and return what each death left and repeated.

    Of the points that have no name (`action:place`) and are at no COMMIT, only `every`-th counts.
    """
    return [
        kill_and_resume(whole, point)
        for number, point in enumerate(whole.points)
        if number % every == 0 or "COMMIT" in point or ":" in point
    ]


def stretches(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one row for each stretch of neighbours that left and repeated the same."""
    alike = groupby(outcomes, lambda each: (dict(each.left), each.repeated, each.same_end))
    rows = []
    for (left, repeated, same_end), group in alike:
        numbers = [outcome.number for outcome in group]
        row = {"from": numbers[0], "to": numbers[-1], **left}
        rows.append(row | {"repeated": ", ".join(repeated) or "nothing", "same end": same_end})
    return rows
