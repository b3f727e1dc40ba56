"""Checks of lesson 02: one transaction, a version condition, placeholders."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress

from lesson_lib.labs.checks import exercise, given, scratch_run
from lesson_lib.sqlite import AgentConnection, read_events

FAIL_AT_EVENT = """CREATE TRIGGER fail BEFORE INSERT ON agent_events
    BEGIN SELECT raise(ABORT, 'the event cannot be stored'); END"""


def _version(connection: AgentConnection) -> int:
    (version,) = connection.execute(
        "SELECT version FROM agent_runs WHERE run_id = 'run-T104'"
    ).fetchone()
    return int(version)


@exercise(1, "put both writes into one block")
def exercise_1(save_both: Callable[[AgentConnection], None]) -> str | None:
    """Let the event fail, then let it succeed."""
    with scratch_run() as (connection, _):
        connection.execute(FAIL_AT_EVENT)
        with suppress(sqlite3.IntegrityError):
            save_both(connection)
            return "the event failed, but your function hid the error"
        if _version(connection) != 0:
            return "the event failed, but the new version stayed: the state is torn"
        connection.execute("DROP TRIGGER fail")
        save_both(connection)
        if (_version(connection), len(read_events(connection, "run-T104"))) != (1, 2):
            return "without a failure, one new version and one new event should be there"
        if connection.in_transaction:
            return "a transaction is still open: nothing is committed yet"
    return None


@exercise(2, "write the UPDATE and return True or False")
def exercise_2(
    save_if_current: Callable[[AgentConnection, str, int, str], bool],
) -> str | None:
    """Save once at the right version, then again at the stale one."""
    with scratch_run() as (connection, _):
        connection.execute(
            "INSERT INTO agent_runs VALUES ('run-T105', 'T105', 'running', 'wait', '{}', 0)"
        )
        first = given(save_if_current(connection, "run-T104", 0, "lookup_runbook"))
        if first is not True or _version(connection) != 1:
            return (
                f"at the right version it returned {first!r}, the version is now"
                f" {_version(connection)}; wanted: True and 1"
            )
        other = connection.execute("SELECT version FROM agent_runs WHERE run_id = 'run-T105'")
        if other.fetchone()[0] != 0:
            return "it saved run-T104, and changed run-T105 as well"
        second = save_if_current(connection, "run-T104", 0, "finish")
        row = connection.execute(
            "SELECT next_action, version FROM agent_runs WHERE run_id = 'run-T104'"
        ).fetchone()
        if tuple(row) != ("lookup_runbook", 1):
            return "a writer that had loaded version 0 changed a run that was at version 1"
        if second is not False:
            return f"the stale writer was stopped, but got {second!r}; wanted: False"
        if save_if_current(connection, "run-T999", 0, "finish") is not False:
            return "a run that does not exist cannot be saved: return False"
    return None


@exercise(3, "change how the query is built")
def exercise_3(runs_of: Callable[[AgentConnection, str], list[str]]) -> str | None:
    """Ask with friendly and unfriendly ticket ids."""
    with scratch_run() as (connection, _):
        if runs_of(connection, "T104") != ["run-T104"]:
            return "for the ticket T104 it should return ['run-T104']"
        if runs_of(connection, "T999") != []:
            return "for a ticket without runs it should return an empty list"
        try:
            found = runs_of(connection, "' OR ticket_id <> '")
        except sqlite3.OperationalError as error:
            return f"an apostrophe in the id broke the SQL: {error}"
        if found != []:
            return f"the id \"' OR ticket_id <> '\" found {found}: it was read as SQL"
    return None
