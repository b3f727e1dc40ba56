"""How long a resume takes under each pattern, as ratios side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from lesson_lib.patterns.checkpointing import Checkpoint
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid
from lesson_lib.patterns.protocol import Pattern
from lesson_lib.patterns.trials import read_pages
from lesson_lib.stores.sqlite import AgentConnection, connect

COLUMNS = ("pattern", "steps", "relative_time")
MAKERS: dict[str, Callable[[AgentConnection, str], Pattern]] = {
    "checkpoint": Checkpoint,
    "hybrid": lambda connection, session: Hybrid(connection, session, every=64),
    "event sourcing": EventSourcing,
}


def relative_times(
    folder: Path, *, lengths: tuple[int, ...] = (100, 1_000, 10_000), rounds: int = 7
) -> list[dict[str, str]]:
    """Return the time of a resume as a multiple of the checkpoint's at the shortest run.

    Args:
        folder: A folder for the databases.
        lengths: The lengths of the run, in steps.
        rounds: How many times to measure; the median counts.
    """
    seconds: dict[tuple[str, int], float] = {}
    for name, make in MAKERS.items():
        with closing(connect(folder / f"resume {name}.db")) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # only the reading is measured
            pattern, done = make(connection, "session-1"), 0
            for length in lengths:
                read_pages(pattern, "run-T900", length - done)
                done = length
                seconds[name, length] = statistics.median(_seconds(pattern) for _ in range(rounds))
    unit = seconds["checkpoint", lengths[0]]
    return [
        {
            "pattern": name,
            "steps": str(length),
            "relative_time": f"{float(f'{found / unit:.2g}'):g}",
        }
        for (name, length), found in seconds.items()
    ]


def _seconds(pattern: Pattern) -> float:
    begin = time.perf_counter()
    pattern.load("run-T900")
    return time.perf_counter() - begin
