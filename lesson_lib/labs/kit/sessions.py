"""Sessions of the ticket agent in child processes, which die at a named point, without cleanup."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from lesson_lib.errors import ChildError
from lesson_lib.ledger import Ledger
from lesson_lib.processes import ChildEnd, die, run_child
from lesson_lib.sqlite import SQLiteStore, connect, create_schema
from lesson_lib.tickets import (
    Tools,
    check_priorities,
    find_ticket,
    read_runbooks,
    read_tickets,
    run_id_for,
    ticket_agent,
)


def run_agent_in_child(
    database: Path,
    ledger: Path,
    ticket_id: str,
    session: str,
    *,
    die_at: str | None = None,
    how: str = "exit",
) -> ChildEnd:
    """Start or resume the run of a ticket in a child process and go on to the end.

    Args:
        database: The database file.
        ledger: The witness file.
        ticket_id: The ticket, such as `T104`.
        session: The child's session name.
        die_at: The crash point to die at, such as `lookup_runbook:before_checkpoint`;
            None to live.
        how: See `die`.

    Raises:
        ChildError: The child failed, or never came to `die_at`.
    """
    command = ["-m", "lesson_lib.labs.kit.sessions", str(database), str(ledger), ticket_id, session]
    if die_at is not None:
        command += ["--die-at", die_at, "--how", how]
    end = run_child(command)
    if die_at is None and end.ended != "finished":
        raise ChildError(f"the child process was not asked to die, and {end.ended}")
    return end


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the child of `run_agent_in_child`: one session of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson_lib.labs.kit.sessions", description=main.__doc__
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("ticket_id")
    parser.add_argument("session")
    parser.add_argument("--die-at", help="the crash point, such as lookup_runbook:tool_ran")
    parser.add_argument("--how", choices=("exit", "kill"), default="exit")
    options = parser.parse_args(arguments)
    passed: list[str] = []

    def passing(point: str) -> None:
        passed.append(point)
        if point == options.die_at:
            die(options.how)

    # Everything that can be wrong with the data is found before anything is stored.
    tickets, runbooks = read_tickets(), read_runbooks()
    check_priorities(tickets)
    run_id = run_id_for(find_ticket(tickets, options.ticket_id).ticket_id)
    tools = Tools(runbooks, Ledger(options.ledger))
    with closing(connect(options.database)) as connection:
        create_schema(connection)
        store = SQLiteStore(connection, options.session)
        state = ticket_agent.resume_or_start(store, run_id)
        state = ticket_agent.run_to_end(store, state, tools, passing=passing)
    if options.die_at is not None:
        sys.exit(f"{options.session} never came to {options.die_at}; it passed {', '.join(passed)}")
    print(state.context["reply"])


if __name__ == "__main__":
    main()
