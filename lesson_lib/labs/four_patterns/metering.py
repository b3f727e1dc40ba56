"""What a pattern writes with a step, and what it fetches to resume, counted and timed."""

from __future__ import annotations

import re
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib.labs.four_patterns.contest import RUN
from lesson_lib.labs.four_patterns.long_runs import LONG_RUN, lab_agent, read_pages
from lesson_lib.labs.four_patterns.stores import Make, Store, hybrid, open_store
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import AgentConnection, connect
from lesson_lib.tickets import Tools, read_runbooks

WRITING = ("INSERT", "UPDATE", "DELETE", "REPLACE")


@dataclass
class Counts:
    """What a meter has counted.

    The bytes are those of the text of the writing statements, values included; the rows fetched
    are those that Python got to see, whatever SQLite read to find them.
    """

    commits: int = 0
    rows_written: int = 0
    bytes: int = 0
    rows_fetched: int = 0


@contextmanager
def meter(connection: AgentConnection) -> Iterator[Counts]:
    """Count what goes over a connection inside of a `with` block."""
    counts, last, before = Counts(), "", connection.total_changes

    def statement(sql: str) -> None:
        nonlocal last
        # A trigger reports the statement that fired it a second time.
        if sql != last and sql.startswith(WRITING):
            blobs = re.findall(r"[xX]'([0-9A-Fa-f]*)'", sql)  # two digits for each byte
            counts.bytes += len(sql.encode()) - sum(map(len, blobs)) // 2
        counts.commits += sql == "COMMIT"
        last = sql

    def fetched(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> sqlite3.Row:
        counts.rows_fetched += 1
        return sqlite3.Row(cursor, row)

    connection.set_trace_callback(statement)
    connection.row_factory = fetched
    try:
        yield counts
    finally:
        connection.set_trace_callback(None)
        connection.row_factory = sqlite3.Row
        counts.rows_written = connection.total_changes - before


@contextmanager
def new_store(make: str | Make) -> Iterator[tuple[AgentConnection, Store]]:
    """Open a store in a new file that nobody needs afterwards: it does not wait for the disk."""
    with TemporaryDirectory() as folder, closing(connect(Path(folder, "agent.db"))) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection, open_store(connection, make, "session-1")


def price(name: str) -> dict[str, object]:
    """Return what the four steps of run T104 write under a pattern."""
    with new_store(name) as (connection, store), TemporaryDirectory() as folder:
        state = lab_agent.start(store, RUN)
        tools = Tools(read_runbooks(), Ledger(Path(folder, "ledger.txt")))
        with meter(connection) as counts:
            lab_agent.run_to_end(store, state, tools)
        return {
            "pattern": name,
            "commits": counts.commits,
            "rows written": counts.rows_written,
            "bytes of SQL": counts.bytes,
        }


def bytes_per_step(name: str, steps: int) -> list[int]:
    """Return the bytes of SQL of each step of a run whose context grows by `DOCUMENT` a step."""
    sizes = []
    with new_store(name) as (connection, store):
        read_pages(store, steps=0, action="find_document")
        for _ in range(steps):
            with meter(connection) as counts:
                read_pages(store, steps=1)
            sizes.append(counts.bytes)
    return sizes


def rows_to_resume(lengths: Sequence[int], every: int) -> dict[str, list[int]]:
    """Return how many rows each pattern fetches to resume a run that is so many steps long.

    The hybrid takes a snapshot after `every` so many steps.
    """

    def rows(connection: AgentConnection, store: Store) -> int:
        with meter(connection) as counts:
            store.load_state(LONG_RUN)
        return counts.rows_fetched

    return _at_lengths(lengths, every, rows)


def relative_times(
    lengths: Sequence[int] = (100, 1_000, 10_000), rounds: int = 7
) -> list[dict[str, str]]:
    """Return the median time of a resume as a multiple of the checkpoint's at the shortest run."""

    def seconds(connection: AgentConnection, store: Store) -> float:
        found = []
        for _ in range(rounds):
            begin = time.perf_counter()
            store.load_state(LONG_RUN)
            found.append(time.perf_counter() - begin)
        return statistics.median(found)

    times = _at_lengths(lengths, 64, seconds)
    unit = times["checkpoint"][0]
    return [
        {"pattern": name, "steps": str(steps), "relative_time": f"{float(f'{s / unit:.2g}'):g}"}
        for name, found in times.items()
        for steps, s in zip(lengths, found, strict=True)
    ]


def _at_lengths[T](
    lengths: Sequence[int], every: int, measure: Callable[[AgentConnection, Store], T]
) -> dict[str, list[T]]:
    """Let the long run grow under each pattern, and measure when it has one of these lengths."""
    found: dict[str, list[T]] = {}
    for name in ("checkpoint", "hybrid", "event sourcing"):
        with new_store(hybrid(every) if name == "hybrid" else name) as (connection, store):
            done, found[name] = 0, []
            for length in lengths:
                read_pages(store, steps=length - done)
                done = length
                found[name].append(measure(connection, store))
    return found
