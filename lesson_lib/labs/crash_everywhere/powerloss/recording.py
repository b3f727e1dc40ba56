"""A run of the agent, as the operations that SQLite does to the disk.

The agent's statements are captured once and sent again to the SQLite that comes with apsw. Only its
version decides how many operations there are: clock, randomness, the disk's properties are fixed.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw

from lesson_lib.labs.crash_everywhere.acknowledged import Acknowledging
from lesson_lib.labs.crash_everywhere.powerloss.disk import LoggedDisk, Operation
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import connect, create_schema
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.sweep.hooks import replaced
from lesson_lib.tickets import Tools, read_runbooks, run_id_for, ticket_agent

TICKET = "T104"
DATABASE = "agent.db"
LEVELS = ("OFF", "NORMAL", "FULL", "EXTRA")
SETTINGS = tuple((mode, level) for mode in ("DELETE", "WAL") for level in LEVELS)
# A folder in memory, where there is one: nothing here has to outlive its process.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class Recording:
    """A whole run of the agent, from an empty folder to the closed database."""

    journal_mode: str
    synchronous: str
    log: tuple[Operation, ...] = field(repr=False)


def package_setting() -> tuple[str, str]:
    """Return the journal mode and the synchronous level that `connect` really sets."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        closing(connect(Path(folder, DATABASE))) as connection,
    ):
        mode, level = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        )
    return mode.upper(), LEVELS[level]


def record(journal_mode: str, synchronous: str) -> Recording:
    """Run the agent under two pragmas and return what SQLite did to the disk.

    Raises:
        ValueError: The pair is none of `SETTINGS`.
    """
    if (journal_mode, synchronous) not in SETTINGS:
        raise ValueError(f"{journal_mode}, {synchronous} is no known setting: see SETTINGS")
    wanted = {"journal_mode": journal_mode, "synchronous": synchronous}
    steps, disk = _steps(), LoggedDisk()
    try:
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as folder,
            closing(apsw.Connection(str(Path(folder, DATABASE)), vfs=disk.name)) as connection,
        ):
            connection.pragma("page_size", 4096)
            for step in steps:
                if isinstance(step, Operation):
                    disk.log.append(step)
                else:
                    sql = re.sub(
                        r"^PRAGMA (journal_mode|synchronous) = \w+",
                        lambda found: f"PRAGMA {found[1]} = {wanted[found[1]]}",
                        step[0],
                    )
                    connection.execute(sql, step[1]).fetchall()
            taken = connection.pragma("journal_mode"), connection.pragma("synchronous")
    finally:
        disk.unregister()
        apsw.randomness(0)  # the next one who asks is seeded by the operating system again
    return Recording(taken[0].upper(), LEVELS[taken[1]], tuple(disk.log))


def operations(recording: Recording, version: int) -> dict[int, Operation]:
    """Return what SQLite does for one checkpoint (its version, from 1), by the place in the log.

    It begins after what the agent was told before, and ends when it is told of this checkpoint.
    """
    log = recording.log
    told = [i for i, each in enumerate(log) if each.kind in ("checkpoint", "tool")]
    (span,) = (
        range(before + 1, own + 1)
        for before, own in pairwise(told)
        if (log[own].kind, log[own].at) == ("checkpoint", version)
    )
    return {place: log[place] for place in span}


@cache
def _steps() -> tuple[Operation | tuple[str, Any], ...]:
    """Run the agent; return its statements with their parameters, and what it was told."""
    steps: list[Operation | tuple[str, Any]] = []
    plain = AgentCursor.execute

    def execute(cursor: AgentCursor, sql: str, parameters: Any = (), /) -> AgentCursor:
        steps.append((sql, parameters))
        return plain(cursor, sql, parameters)

    def tell(line: str) -> None:
        kind, what, *_ = line.split(" ")
        saved = Operation("checkpoint", DATABASE, int(what)) if kind == "version" else None
        steps.append(saved or Operation("tool", what))

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)  # the times belong to what is written
    with tempfile.TemporaryDirectory(dir=MEMORY) as name, replaced(AgentCursor, "execute", execute):
        folder = Path(name)
        tools = Tools(read_runbooks(), Ledger(folder / "ledger.txt"))
        with closing(connect(folder / DATABASE, clock=lambda: noon)) as connection:
            create_schema(connection)
            store = Acknowledging(connection, "session-1", tell=tell)
            state = ticket_agent.start(store, run_id_for(TICKET))
            ticket_agent.run_to_end(store, state, tools)
    return tuple(steps)
