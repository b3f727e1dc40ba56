"""What durability costs: the time of a checkpoint under each setting, as ratios side by side."""

from __future__ import annotations

import csv
import statistics
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.labs.crash_everywhere.powerloss import SETTINGS
from lesson_lib.model import RunState, Step
from lesson_lib.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    save_checkpoint,
    start_run,
)
from lesson_lib.tickets import DATA

DEFAULT = ("WAL", "FULL")


def relative_costs(
    folder: Path, *, checkpoints: int = 40, rounds: int = 5
) -> dict[tuple[str, str], float]:
    """Return the time of a checkpoint under each setting as a multiple of `DEFAULT`'s.

    Each round measures all settings one after the other, so a machine that is busy for a while
    slows them all; the median of the rounds' ratios is returned.

    Args:
        folder: A folder on the disk that is to be measured. What is written there goes again.
        checkpoints: How many to save for one measurement.
        rounds: How many times to measure.
    """
    ratios: dict[tuple[str, str], list[float]] = {setting: [] for setting in SETTINGS}
    for _ in range(rounds):
        seconds = {}
        for journal_mode, synchronous in SETTINGS:
            with (
                TemporaryDirectory(dir=folder) as scratch,
                closing(connect(Path(scratch, "agent.db"))) as connection,
            ):
                create_schema(connection)
                connection.execute(f"PRAGMA journal_mode = {journal_mode}").fetchall()
                connection.execute(f"PRAGMA synchronous = {synchronous}")
                seconds[journal_mode, synchronous] = seconds_per_checkpoint(connection, checkpoints)
        for setting in SETTINGS:
            ratios[setting].append(seconds[setting] / seconds[DEFAULT])
    return {setting: statistics.median(found) for setting, found in ratios.items()}


def read_costs(path: Path = DATA / "durability_costs.csv") -> dict[tuple[str, str], float]:
    """Read what `make bench` measured on one machine: like `relative_costs`."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["journal_mode"], row["synchronous"]): float(row["relative_time"])
            for row in csv.DictReader(file)
        }


def seconds_per_checkpoint(connection: AgentConnection, checkpoints: int) -> float:
    """Start a run and return the mean time of its first checkpoints, in seconds."""
    state = RunState.begin("run-T104", "T104", "a", {})
    start_run(connection, state, session="session-1")
    begin = time.perf_counter()
    for number in range(checkpoints):
        step = Step("a", {"number": number}, next_action="a")
        state = save_checkpoint(connection, state, step, session="session-1")
    return (time.perf_counter() - begin) / checkpoints
