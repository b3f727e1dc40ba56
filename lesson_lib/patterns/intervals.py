"""How often to save: what a death costs in steps done again, what the saves cost in commits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.patterns.checkpointing import Checkpoint
from lesson_lib.patterns.protocol import Step
from lesson_lib.patterns.trials import read_pages
from lesson_lib.stores.sqlite import connect


@dataclass(frozen=True)
class Interval:
    """A run saved every `every` steps: its commits, and the steps done again after a death."""

    every: int
    commits: int
    mean_redone: float
    worst_redone: int

    def cost(self, commit: float, deaths: float) -> float:
        """Return the whole cost, in steps.

        Args:
            commit: What a commit costs, in steps.
            deaths: How often the process dies in a run.
        """
        return self.commits * commit + deaths * self.mean_redone


def measure(steps: int, every: int) -> Interval:
    """Run so many steps, save every few, and look what a death after each step would undo.

    The death comes at the worst moment: the step is done, and not saved yet.
    """
    with TemporaryDirectory() as folder, closing(connect(Path(folder, "agent.db"))) as connection:
        pattern = Checkpoint(connection, "session-1")
        kept = read_pages(pattern, "run-T900", 0)
        redone, commits = [], 0
        for page in range(1, steps + 1):
            on_disk = pattern.load("run-T900").context
            redone.append(page - on_disk.get("cursors", {"page": 0})["page"])
            if page % every == 0 or page == steps:
                found = {"cursors": {"page": page}}
                kept = pattern.save(kept, Step("read_page", found, "its turn", "read_page"))
                commits += 1
    return Interval(every, commits, statistics.mean(redone), max(redone))


def cheapest(intervals: Sequence[Interval], commit: float, deaths: float) -> int:
    """Return after how many steps to save; see `Interval.cost`."""
    return min(intervals, key=lambda interval: interval.cost(commit, deaths)).every


def young(commit: float, steps_between_deaths: float) -> float:
    """Return Young's first approximation of the best interval, in steps.

    J. W. Young, A first order approximation to the optimum checkpoint interval (CACM 17/9, 1974).
    """
    return math.sqrt(2 * commit * steps_between_deaths)
