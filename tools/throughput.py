"""Measure what several workers bring, and what a batch saves, as ratios."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.labs.several_workers.worker_process import command
from lesson_lib.model import RunState, Step
from lesson_lib.processes import Child
from lesson_lib.riders.batches import CheckpointBatch
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.tickets import new_run, read_tickets

KINDS = {"tools take 50 ms": (0.05, 24), "tools take no time": (0.0, 72)}  # seconds, runs
WORKERS = (1, 2, 4, 8)


def seconds_of_work(folder: Path, workers: int, takes: float, runs: int) -> float:
    """Return how long several worker processes need to end all runs of a new database.

    Args:
        folder: An empty folder on the disk that is to be measured.
        workers: How many processes; each has started before the time is taken.
        takes: How long a tool takes, in seconds. Each run calls two.
        runs: How many runs there are.
    """
    database, tickets = folder / "agent.db", read_tickets()
    with closing(connect(database)) as connection:
        create_schema(connection)
        for number in range(runs):
            ticket = tickets[number % len(tickets)]
            ticket = replace(ticket, ticket_id=f"{ticket.ticket_id}-{number}")
            SQLiteStore(connection, "session-1").start_run(new_run(ticket))
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    with ExitStack() as stack:
        crew = [
            stack.enter_context(
                Child(*command(database, folder / "ledger", name, lease=60, takes=takes))
            )
            for name in names
        ]
        for child in crew:
            child.read()
        begin = time.perf_counter()
        for child in crew:
            child.tell()
        for child in crew:
            child.end()
        return time.perf_counter() - begin


def relative_throughput(folder: Path, rounds: int = 3) -> list[dict[str, str]]:
    """Return rows of `data/throughput.csv`: the median of the rounds, one worker being 1.

    Args:
        folder: Where to make the databases.
        rounds: How many times to measure.
    """
    found = []
    for kind, (takes, runs) in KINDS.items():
        ratios: dict[int, list[float]] = {workers: [] for workers in WORKERS}
        for _ in range(rounds):
            seconds = {}
            for workers in WORKERS:
                with TemporaryDirectory(dir=folder) as name:
                    seconds[workers] = seconds_of_work(Path(name), workers, takes, runs)
                ratios[workers].append(seconds[1] / seconds[workers])
        for workers, values in ratios.items():
            ratio = f"{statistics.median(values):.1f}"
            found.append({"kind": kind, "workers": str(workers), "relative_runs_per_second": ratio})
    return found


def price_in_a_batch(folder: Path, limit: int = 20, checkpoints: int = 200) -> float:
    """Return the time of a checkpoint in a full batch, as a multiple of one that is alone.

    Args:
        folder: Where to make the database.
        limit: How many checkpoints are committed together.
        checkpoints: How many to save in each way.
    """
    with closing(connect(folder / "batch.db")) as connection:
        create_schema(connection)
        tickets = [replace(read_tickets()[0], ticket_id=f"T-{n}") for n in range(checkpoints)]
        store = SQLiteStore(connection, "session-1")
        states = [store.start_run(new_run(ticket)) for ticket in tickets]
        seconds = []
        for size in (1, limit):
            batch = CheckpointBatch(connection, "s", limit=size, delay=timedelta(hours=1))
            saved: list[RunState | Exception] = []
            begin = time.perf_counter()
            for state in states:
                saved += batch.add(state, Step("a", {}, next_action="a"))
            saved += batch.flush()
            seconds.append(time.perf_counter() - begin)
            states = [state for state in saved if isinstance(state, RunState)]
    return seconds[1] / seconds[0]
