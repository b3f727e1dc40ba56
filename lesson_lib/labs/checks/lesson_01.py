"""Checks of lesson 01: constraints, the pragma's place, the order of inserts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

from lesson_lib.labs.checks import exercise, given, scratch_run
from lesson_lib.sqlite import AgentConnection
from lesson_lib.sqlite.opening import schema_statements

WHEN = "2026-01-05T08:00:00Z"


@exercise(1, "assign your CREATE TABLE statement to notes_sql")
def exercise_1(notes_sql: str) -> str | None:
    """Try good and bad notes in the learner's table."""
    with scratch_run() as (connection, _):
        connection.execute(notes_sql)
        names = [row[1] for row in connection.execute("PRAGMA table_info(run_notes)")]
        if sorted(names) != ["note", "number", "run_id"]:
            return f"run_notes has the columns {names}, wanted: run_id, number, note"

        def accepts(**note: object) -> bool:
            try:
                connection.execute(
                    "INSERT INTO run_notes (run_id, number, note) VALUES (:run_id, :number, :note)",
                    {"run_id": "run-T104", "number": 1, "note": "called back"} | note,
                )
            except sqlite3.IntegrityError:
                return False
            return True

        if not accepts() or not accepts(number=2):
            return "the table refuses two good notes of one run, numbers 1 and 2"
        if accepts():
            return "a run got two notes with the number 1: which columns make a note unique?"
        if accepts(run_id="run-T999", number=1):
            return "a note of a run that does not exist got in: what should run_id reference?"
        for column in ("run_id", "number", "note"):
            if accepts(**{"number": 3, column: None}):
                return f"a note whose {column} is NULL got in"
        if accepts(number=0):
            return "a note with the number 0 got in, but notes count from 1"
    return None


@exercise(2, "change how the connection is opened")
def exercise_2(open_checked: Callable[[str], sqlite3.Connection]) -> str | None:
    """Try an orphan through the learner's connection."""
    with scratch_run() as (database, _), closing(given(open_checked(str(database.path)))) as mine:
        if mine.execute("PRAGMA foreign_keys").fetchone()[0] != 1:
            if mine.in_transaction:
                return (
                    "with autocommit=False a transaction is open at once, and again after each"
                    " commit, so the pragma is ignored: how must the connection be opened?"
                )
            return "foreign_keys reads back 0: the pragma is missing"
        if mine.in_transaction:
            return "the connection has a transaction open already: nobody else can write"
        try:
            mine.execute(
                f"INSERT INTO agent_events VALUES ('run-T999', 1, 's', 'e', 'a', '{{}}', '{WHEN}')"
            )
        except sqlite3.IntegrityError:
            return None
        return "the orphan got in"


@exercise(3, "assign a list of letters to order")
def exercise_3(order: Sequence[str]) -> str | None:
    """Execute the statements in the learner's order."""
    steps: dict[str, Callable[[AgentConnection], object]] = {
        "A": lambda c: c.execute(
            f"INSERT INTO agent_events VALUES ('run-T101', 1, 's', 'e', 'a', '{{}}', '{WHEN}')"
        ),
        "B": lambda c: [c.execute(statement) for statement in schema_statements()],
        "C": lambda c: c.execute(
            "INSERT INTO tool_effects VALUES ('run-T101:page', 'run-T101', 'page', '', '1')"
        ),
        "D": lambda c: c.execute(
            "INSERT INTO agent_runs VALUES ('run-T101', 'T101', 'running', 'go', '{}', 0)"
        ),
    }
    if sorted(order) != sorted(steps):
        return f"use each of the letters {', '.join(steps)} once"
    with scratch_run() as (connection, _):
        for table in ("tool_effects", "agent_events", "agent_runs"):
            connection.execute(f"DROP TABLE {table}")
        for letter in order:
            try:
                steps[letter](connection)
            except sqlite3.IntegrityError as error:
                return f"step {letter} was refused ({error}): what must be there before it?"
            except Exception:  # noqa: BLE001  (whatever SQLite says, the table is missing)
                return f"step {letter} failed: the tables are not there yet"
    return None
