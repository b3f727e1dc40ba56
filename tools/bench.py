"""Measure what durability costs: checkpoints per second, as ratios side by side in one run."""

from __future__ import annotations

import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.stores.sqlite import (
    AgentConnection,
    connect,
    create_schema,
    save_checkpoint,
    start_run,
)

CHECKPOINTS = 100
ROUNDS = 7


def checkpoints(connection: AgentConnection) -> float:
    """Return the seconds that `save_checkpoint` needs for one checkpoint."""
    state = start_run(
        connection,
        run_id=f"run-{time.monotonic_ns()}",
        ticket_id="T104",
        session="session-1",
        first_action="a",
        context={},
    )
    begin = time.perf_counter()
    for number in range(CHECKPOINTS):
        state = save_checkpoint(
            connection,
            state,
            session="session-1",
            action="a",
            next_action="a",
            context={"number": number},
        )
    return (time.perf_counter() - begin) / CHECKPOINTS


def plain_writes(connection: AgentConnection) -> float:
    """Return the seconds of the same two writes without any check, as plain SQL."""
    begin = time.perf_counter()
    for number in range(CHECKPOINTS):
        plain = f"plain-{time.monotonic_ns()}"
        sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")
        sqlite3.Connection.execute(
            connection,
            "INSERT INTO agent_runs VALUES (?, 'T104', 'running', 'a', ?, 0)",
            (plain, f'{{"number": {number}}}'),
        )
        sqlite3.Connection.execute(
            connection,
            "INSERT INTO agent_events VALUES (?, 1, 's', 'e', 'a', '{}', '2026-01-05T08:00:00Z')",
            (plain,),
        )
        sqlite3.Connection.execute(connection, "COMMIT")
    return (time.perf_counter() - begin) / CHECKPOINTS


def main() -> None:
    """Print each way's cost as a multiple of the package's default, WAL with synchronous FULL."""
    ways: dict[str, tuple[str, Callable[[AgentConnection], float]]] = {
        "save_checkpoint, WAL FULL (the default)": ("", checkpoints),
        "plain SQL, WAL FULL": ("", plain_writes),
        "save_checkpoint, WAL NORMAL": ("PRAGMA synchronous = NORMAL", checkpoints),
        "save_checkpoint, DELETE FULL": ("PRAGMA journal_mode = DELETE", checkpoints),
    }
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    with TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for number in range(ROUNDS):
            default = 0.0
            for name, (pragma, measure) in ways.items():
                with closing(connect(Path(folder, f"{len(name)}-{number}.db"))) as connection:
                    create_schema(connection)
                    if pragma:
                        connection.execute(pragma).fetchall()
                    seconds = measure(connection)
                default = default or seconds
                ratios[name].append(seconds / default)
    for name, values in ratios.items():
        print(f"{name:<42}{statistics.median(values):6.2f} x the time of the default")


if __name__ == "__main__":
    main()
