"""A meter on a connection: what a pattern writes with a step, and fetches to resume."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib.json_text import JSONObject
from lesson_lib.ledger import Ledger
from lesson_lib.patterns.event_sourcing import EventSourcing
from lesson_lib.patterns.hybrid import Hybrid
from lesson_lib.patterns.protocol import Pattern, load_or_start, work
from lesson_lib.patterns.trials import PATTERNS, read_pages
from lesson_lib.stores.sqlite import AgentConnection, connect
from lesson_lib.tickets import Tools, find_ticket, read_runbooks, read_tickets

WRITING = ("INSERT", "UPDATE", "DELETE")


class Meter:
    """Counts, inside a `with` block: commits, rows written, bytes of SQL, rows fetched.

    The bytes are those of the text of the writing statements, values included; the rows fetched
    are those that Python got to see, whatever SQLite read to find them.
    """

    def __init__(self, connection: AgentConnection) -> None:
        """Take the connection to be watched."""
        self._connection = connection
        self._last = ""
        self._changes_before = connection.total_changes
        self.commits = self.bytes = self.rows_fetched = 0

    @property
    def rows_written(self) -> int:
        """Return how many rows were inserted, updated or deleted."""
        return self._connection.total_changes - self._changes_before

    def __enter__(self) -> Meter:
        self._connection.set_trace_callback(self._statement)
        self._connection.row_factory = self._row
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.set_trace_callback(None)
        self._connection.row_factory = sqlite3.Row

    def _statement(self, sql: str) -> None:
        # A trigger reports the statement that fired it a second time.
        if sql != self._last and sql.startswith(WRITING):
            blobs = re.findall(r"[xX]'([0-9A-Fa-f]*)'", sql)  # two digits for each byte
            self.bytes += len(sql.encode()) - sum(map(len, blobs)) // 2
        self.commits += sql == "COMMIT"
        self._last = sql

    def _row(self, cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> sqlite3.Row:
        self.rows_fetched += 1
        return sqlite3.Row(cursor, row)


def price(name: str) -> dict[str, object]:
    """Return what the four steps of run T104 write under a pattern."""
    with TemporaryDirectory() as folder, closing(connect(Path(folder, "agent.db"))) as connection:
        pattern = PATTERNS[name](connection, "session-1")
        state = load_or_start(pattern, find_ticket(read_tickets(), "T104"))
        tools = Tools(read_runbooks(), Ledger(Path(folder, "ledger.txt")))
        with Meter(connection) as meter:
            work(pattern, state, tools)
        return {
            "pattern": name,
            "commits": meter.commits,
            "rows written": meter.rows_written,
            "bytes of SQL": meter.bytes,
        }


def bytes_per_step(name: str, steps: int, document: str) -> list[int]:
    """Return the bytes of SQL of each step of a run whose context grows by a document a step."""

    def found(version: int) -> JSONObject:
        return {"documents": [document]}

    sizes = []
    with TemporaryDirectory() as folder, closing(connect(Path(folder, "agent.db"))) as connection:
        pattern = PATTERNS[name](connection, "session-1")
        read_pages(pattern, "run-T900", 0, "find_document")
        for _ in range(steps):
            with Meter(connection) as meter:
                read_pages(pattern, "run-T900", 1, "find_document", found)
            sizes.append(meter.bytes)
    return sizes


def rows_to_resume(lengths: list[int], every: int) -> dict[str, list[int]]:
    """Return, for each pattern, how many rows it fetches to resume a run after so many steps.

    Args:
        lengths: The lengths of the run, in steps.
        every: How many steps lie between two snapshots of the hybrid.
    """
    makers: dict[str, Callable[[AgentConnection, str], Pattern]] = {
        "checkpoint": PATTERNS["checkpoint"],
        "hybrid": lambda c, s: Hybrid(c, s, every=every),
        "event sourcing": EventSourcing,
    }
    found: dict[str, list[int]] = {}
    for name, make in makers.items():
        found[name] = []
        with (
            TemporaryDirectory() as folder,
            closing(connect(Path(folder, "agent.db"))) as connection,
        ):
            connection.execute("PRAGMA synchronous = OFF")  # only the counts matter here
            pattern = make(connection, "session-1")
            done = 0
            for length in lengths:
                read_pages(pattern, "run-T900", length - done)
                done = length
                with Meter(connection) as meter:
                    pattern.load("run-T900")
                found[name].append(meter.rows_fetched)
    return found
