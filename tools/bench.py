"""Measure what durability costs, as ratios side by side; `--record` keeps them for the lessons."""

from __future__ import annotations

import argparse
import csv
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from throughput import price_in_a_batch, relative_throughput

from lesson_lib.labs.checkpoint_format.measuring import measure, pays_from
from lesson_lib.labs.crash_everywhere.costs import DEFAULT, relative_costs, seconds_per_checkpoint
from lesson_lib.labs.four_patterns.metering import relative_times
from lesson_lib.sqlite import AgentConnection, connect, create_schema
from lesson_lib.tickets import DATA

CHECKPOINTS = 100
ROUNDS = 7


def seconds_of_plain_writes(connection: AgentConnection) -> float:
    """Return the seconds of a checkpoint's two writes without any check, as plain SQL."""
    begin = time.perf_counter()
    for number in range(CHECKPOINTS):
        for sql, *values in (
            ("BEGIN IMMEDIATE",),
            (
                "INSERT INTO agent_runs VALUES (?, 'T104', 'running', 'a', ?, 0)",
                f"plain-{number}",
                f'{{"number": {number}}}',
            ),
            (
                "INSERT INTO agent_events VALUES (?, 1, 's', 'e', 'a', '{}', '2026-01-01TZ')",
                f"plain-{number}",
            ),
            ("COMMIT",),
        ):
            sqlite3.Connection.execute(connection, sql, values)
    return (time.perf_counter() - begin) / CHECKPOINTS


def price_of_the_checks(folder: Path) -> float:
    """Return the time of `save_checkpoint` as a multiple of plain SQL's for the same writes."""
    ratios = []
    for number in range(ROUNDS):
        with closing(connect(folder / f"plain-{number}.db")) as connection:
            create_schema(connection)
            checked = seconds_per_checkpoint(connection, CHECKPOINTS)
            ratios.append(checked / seconds_of_plain_writes(connection))
    return statistics.median(ratios)


def durability(folder: Path, record: bool) -> None:
    """Print the time of a checkpoint under each setting, as a multiple of the package's own."""
    costs = relative_costs(folder, checkpoints=CHECKPOINTS, rounds=ROUNDS)
    for (journal_mode, synchronous), ratio in costs.items():
        print(f"{journal_mode:<7}{synchronous:<7}{ratio:6.2f} x the time under {' '.join(DEFAULT)}")
    if record:
        with (DATA / "durability_costs.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["journal_mode", "synchronous", "relative_time"])
            writer.writerows([*setting, f"{ratio:.2f}"] for setting, ratio in costs.items())


def several_workers(folder: Path, record: bool) -> None:
    """Print the runs per second of several workers, as a multiple of one worker's."""
    rows = relative_throughput(folder)
    for row in rows:
        print("{kind:<20}{workers} workers: {relative_runs_per_second} x one".format(**row))
    if record:
        with (DATA / "throughput.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def compression(folder: Path, record: bool) -> None:
    """Print what compression makes of a checkpoint, as shares of the plain one's."""
    costs = measure(folder)
    for cost in costs:
        print(
            f"{cost.size:>7,} bytes {cost.compression}: {cost.ratio:.3f} of the bytes,"
            f" {cost.written:.2f} written, {cost.relative_time:.2f} of the time of a save"
        )
    print(f"zstd pays from {pays_from(costs):,} bytes")
    if record:
        with (DATA / "compression.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(vars(costs[0]))
            for cost in costs:
                shares = (cost.ratio, cost.written, cost.relative_time)
                writer.writerow([cost.size, cost.compression, *(f"{s:.3f}" for s in shares)])


def resuming(record: bool) -> None:
    """Print the time of a resume under each pattern, as a multiple of a short checkpoint's."""
    rows = relative_times()
    for row in rows:
        print("{pattern:<16}{steps:>6} steps: resumed in {relative_time} x".format(**row))
    if record:
        with (DATA / "patterns.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def main() -> None:
    """Measure, print, and keep the figures on demand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="where to measure; a temporary folder if none")
    parser.add_argument("--record", action="store_true", help="write the figures to data/")
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        durability(folder, options.record)
        print(f"save_checkpoint takes {price_of_the_checks(folder):.2f} x the time of plain SQL")
        print(f"a checkpoint in a batch of 20 takes {price_in_a_batch(folder):.2f} x one alone")
        several_workers(folder, options.record)
        resuming(options.record)
        compression(folder, options.record)


if __name__ == "__main__":
    main()
