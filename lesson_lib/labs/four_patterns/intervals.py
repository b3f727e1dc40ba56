"""How often to save: what a death costs in steps done again, what the saves cost in commits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lesson_lib.labs.four_patterns.long_runs import LONG_RUN, read_pages
from lesson_lib.labs.four_patterns.metering import new_store
from lesson_lib.model import Step


@dataclass(frozen=True)
class Interval:
    """A run saved every `every` steps: its commits, and the steps done again after a death."""

    every: int
    commits: int
    mean_redone: float
    worst_redone: int


def measure(steps: int, every: int) -> Interval:
    """Run so many steps, save every few, and look what a death after each step would undo.

    The death comes at the worst moment: the step is done, and not saved yet.
    """
    redone, commits = [], 0
    with new_store("checkpoint") as (_, store):
        kept = read_pages(store, steps=0)
        for page in range(1, steps + 1):
            on_disk = store.load_state(LONG_RUN).context
            redone.append(page - on_disk.get("cursors", {"page": 0})["page"])
            if page % every == 0 or page == steps:
                step = Step("read_page", {"cursors": {"page": page}}, "read_page")
                kept = store.save_checkpoint(kept, step)
                commits += 1
    return Interval(every, commits, statistics.mean(redone), max(redone))


def cheapest(intervals: Sequence[Interval], commit: float, deaths: float) -> int:
    """Return after how many steps to save: a commit costs so many steps, a run dies so often."""
    return min(intervals, key=lambda i: i.commits * commit + deaths * i.mean_redone).every


def young(commit: float, steps_between_deaths: float) -> float:
    """Return Young's first approximation of the best interval, in steps.

    J. W. Young, A first order approximation to the optimum checkpoint interval (CACM 17/9, 1974).
    """
    return math.sqrt(2 * commit * steps_between_deaths)
