"""The ticket agent as the sweep kills it: the run of T104 in a folder."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from lesson_lib.labs.crash_everywhere.acknowledged import Acknowledging
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import connect, create_schema
from lesson_lib.sqlite.connection import AgentCursor
from lesson_lib.sqlite.on_disk import TABLES, rows_on_disk
from lesson_lib.sweep import Target
from lesson_lib.sweep.hooks import Point, statements
from lesson_lib.tickets import Tools, read_runbooks, ticket_agent

RUN = "run-T104"


def session(folder: Path, name: str, point: Point) -> None:
    """Start or resume the run, and go on to the end; a point at each statement and each name."""
    tools = Tools(read_runbooks(), Ledger(folder / "ledger"))
    told = Ledger(folder / "told")
    with (
        statements(AgentCursor, point),
        closing(connect(folder / "agent.db")) as connection,
    ):
        create_schema(connection)
        store = Acknowledging(connection, name, tell=told.write)
        state = ticket_agent.resume_or_start(store, RUN)
        ticket_agent.run_to_end(store, state, tools, passing=point)


def rows(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows that a new process finds, none where there is no table yet."""
    database = folder / "agent.db"
    try:
        if database.exists():
            return rows_on_disk(database, connected=False)
    except sqlite3.OperationalError as error:
        if str(error) != f"no such table: {TABLES[0]}":
            raise
    return {name: [] for name in TABLES}


def look(folder: Path) -> dict[str, object]:
    """Return the version of the run (None where none is stored) and how much lies beside it."""
    runs, events, effects = rows(folder).values()
    version = runs[0][5] if runs else None
    return {"version": version, "events": len(events), "saved results": len(effects)}


def end(folder: Path) -> object:
    """Return what must be the same in the end: all but the events, which tell of the deaths."""
    return {name: found for name, found in rows(folder).items() if name != "agent_events"}


def calls(folder: Path) -> list[str]:
    """Return the tools that were really called, in order."""
    return [key.removeprefix(f"{RUN}:") for key in Ledger(folder / "ledger").lines()]


TICKET_TARGET = Target(f"{__name__}:session", look, end, calls)
